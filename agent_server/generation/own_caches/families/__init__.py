"""What transformers lacks in single families: see `family_mends.mend`. Importing this alone loads no torch."""
