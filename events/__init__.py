"""AG-UI's vocabulary and rules, and the translation of a model's output to events. Pure: no I/O."""

DISTRIBUTION = "agent-server"
"""Marks this package as ours: other distributions install a top-level `events` too."""
