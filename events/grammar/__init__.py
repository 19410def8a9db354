"""From the same OutputFormat that the parser reads: what a legal output is, as a structural tag."""

from events.grammar.call_nodes import Function
from events.grammar.plan import Plan, Stage, plan

__all__ = ["Function", "Plan", "Stage", "plan"]
