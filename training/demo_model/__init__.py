"""Scripts that train, export and measure the bundled demo model."""
