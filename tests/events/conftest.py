from tests.conformance.node import node_clients

__all__ = ["node_clients"]
