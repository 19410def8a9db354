"""The adapters: each turns a wire's bytes into a RunAgentInput with options, and events into frames. No I/O."""

DISTRIBUTION = "agent-server"
"""Marks this package as part of agent-server: other distributions install a top-level `adapters` too."""
