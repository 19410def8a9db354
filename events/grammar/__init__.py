"""Grammars that constrain a model's output, made from the same `OutputFormat` that the parser reads.

The way of a tool's JSON Schema: `lint` takes out what no grammar can enforce and reports it; `structural_tag` builds
the tag of the whole output (`call_nodes`, `argument_values`, `channel_nodes`); `lark` writes the tag in llguidance's
dialect. Grammars of clients come in through `ebnf` and `client_lark`.
"""

from events.grammar.call_nodes import Function
from events.grammar.structural_tag import Plan, Stage, plan

__all__ = ["Function", "Plan", "Stage", "plan"]
