"""One module for each family: a `FORMAT`, and the `NAMES` by which it is selected besides its own.

The registry finds every module in here; see docs/adding-a-format.md.
"""
