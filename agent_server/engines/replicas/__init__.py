"""Several engines used as one: generations go to the least loaded or best cached one, and outlive its failure."""

from agent_server.engines.replicas.replica import distinct
from agent_server.engines.replicas.replica_set import ReplicaCollector, ReplicaSet

__all__ = ["ReplicaCollector", "ReplicaSet", "distinct"]
