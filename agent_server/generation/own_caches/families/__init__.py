"""Patches of transformers' model families, applied by `family_patches.apply_patches`. Importing this package alone
loads no torch."""
