"""What a run says: AG-UI's vocabulary and rules, and the way from a model's tokens to events. Pure: no I/O."""

DISTRIBUTION = "agent-server"
"""Marks this package as ours: other distributions install a top-level `events` too."""
