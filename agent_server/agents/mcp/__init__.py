"""MCP servers as agents have them: their declarations, sessions, tools, elicitation and apps."""
