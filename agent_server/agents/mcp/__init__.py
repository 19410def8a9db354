"""The MCP servers of agents: their declarations, sessions, tools, elicitation and apps."""
