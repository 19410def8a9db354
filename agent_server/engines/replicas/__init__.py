"""Several engines used as one: generations go to the least loaded or best cached one, and outlive its failure."""

from agent_server.engines.replicas.metrics import ReplicaCollector
from agent_server.engines.replicas.replica import distinct
from agent_server.engines.replicas.replica_set import ReplicaSet

__all__ = ["ReplicaCollector", "ReplicaSet", "distinct"]
