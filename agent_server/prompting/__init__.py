"""Messages and tools become token ids here, and the settings by which the output is read and held to a grammar."""
