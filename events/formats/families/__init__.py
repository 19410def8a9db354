"""One module per family of models. Each defines `FAMILY`: its formats, the names that select them, the signs by which
its chat templates are recognised, and sample outputs.

The registry imports every module of this package; see docs/adding-a-format.md.
"""
