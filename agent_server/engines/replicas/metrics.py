"""Prometheus metrics of the replicas, labelled with their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from agent_server.engines.replicas.replica_set import ReplicaSet

PREFIX = "agent_server:replica_"
CIRCUITS = ("closed", "half_open", "open")


class ReplicaCollector(Collector):
    """Reads a ReplicaSet whenever Prometheus scrapes."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._set = replicas

    def collect(self) -> Iterable[Metric]:
        rows = self._set.describe()
        gauges = {
            "requests_in_flight": ("Generations that the replica is working on", "inFlight"),
            "healthy": ("1 while the replica is loaded and answers", "healthy"),
            "draining": ("1 while an operator keeps new generations away", "draining"),
        }
        counters = {
            "generations": ("Generations given to the replica", "generations"),
            "failures": ("Generations that the replica lost", "failures"),
            "retries": ("Generations begun again elsewhere before their first token", "retries"),
            "resumes": ("Generations continued elsewhere after their first token", "resumes"),
        }
        for name, (text, key) in gauges.items():
            yield _family(GaugeMetricFamily(PREFIX + name, text, labels=["replica"]), rows, key)
        for name, (text, key) in counters.items():
            yield _family(CounterMetricFamily(PREFIX + name, text, labels=["replica"]), rows, key)
        yield _circuits(rows)


def _family(family: GaugeMetricFamily | CounterMetricFamily, rows: list[dict[str, Any]], key: str) -> Metric:
    for row in rows:
        family.add_metric([str(row["name"])], float(row[key]))
    return family


def _circuits(rows: list[dict[str, object]]) -> Metric:
    """One gauge for each state of the circuit; that of the present state is 1, the others are 0."""
    family = GaugeMetricFamily(PREFIX + "circuit", "1 for the state of the circuit", labels=["replica", "state"])
    for row in rows:
        for state in CIRCUITS:
            family.add_metric([str(row["name"]), state], float(row["circuit"] == state))
    return family
