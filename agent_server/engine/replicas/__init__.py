"""Several engines as one: chosen by load and by what they have cached, and survived when they fail."""

from agent_server.engine.replicas.metrics import ReplicaCollector
from agent_server.engine.replicas.replica import distinct
from agent_server.engine.replicas.replica_set import ReplicaSet
from agent_server.engine.replicas.settings import ReplicaSettings

__all__ = ["ReplicaCollector", "ReplicaSet", "ReplicaSettings", "distinct"]
