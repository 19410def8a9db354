"""Several engines as one: chosen by load and by what they have cached, and survived when they fail."""

from agent_server.engines.replicas.metrics import ReplicaCollector
from agent_server.engines.replicas.replica import distinct
from agent_server.engines.replicas.replica_set import ReplicaSet
from agent_server.engines.replicas.settings import ReplicaSettings

__all__ = ["ReplicaCollector", "ReplicaSet", "ReplicaSettings", "distinct"]
