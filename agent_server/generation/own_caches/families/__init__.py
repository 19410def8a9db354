"""What transformers lacks in single families: see `family_patches.apply_patches`. Importing it alone loads no torch."""
