"""One module for each family of models, with a `FAMILY` that says everything of it: its formats, the names that select
them, the signs by which a chat template is known as the family's, and sample outputs.

The registry finds every module in here; see docs/adding-a-format.md.
"""
