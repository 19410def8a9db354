"""The engines: each turns token ids into tokens behind the protocol of `agent_server.engine`."""
