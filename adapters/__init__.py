"""The wires: each turns bytes into a RunAgentInput with options, and events into frames. Pure: no I/O."""

DISTRIBUTION = "agent-server"
"""Marks this package as ours: other distributions install a top-level `adapters` too."""
