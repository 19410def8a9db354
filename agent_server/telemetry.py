"""Metrics and logs. Names are vLLM's where it has one, so that dashboards fit (`vllm:` becomes `agent_server:`).

Nothing that a client sent goes into a log line or a label: no bodies, no headers, no prompts, no user's ids.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "agent_server:"
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class EngineCollector(Collector):
    """Reads gauges and counters that others keep at scrape time: the engine's, or another part's."""

    def __init__(self, read: Callable[[], Mapping[str, float]], source: str = "the engine") -> None:
        self._read = read
        self._source = source

    def collect(self) -> Iterable[Metric]:
        for name, value in self._read().items():
            metric = GaugeMetricFamily(PREFIX + name, f"{name} of {self._source}")
            metric.add_metric([], value)
            yield metric


class Telemetry:
    """One server's registry; nothing global, so that two servers in one process do not share numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            PREFIX + "http_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self.refused = Counter(
            PREFIX + "requests_refused", "Requests that were refused, by the error's kind", ["reason"],
            registry=self.registry,
        )  # fmt: skip
        self.runs = Counter(PREFIX + "request_success", "Runs by how they ended", ["reason"], registry=self.registry)
        self.open_runs = Gauge(PREFIX + "runs_open", "Runs going on", registry=self.registry)
        self.prompt_tokens = Counter(PREFIX + "prompt_tokens", "Prompt tokens of finished runs", registry=self.registry)
        self.output_tokens = Counter(
            PREFIX + "generation_tokens", "Generated tokens of finished runs", registry=self.registry
        )
        self.first_token = Histogram(
            PREFIX + "time_to_first_token_seconds", "Arrival to first token", buckets=SECONDS, registry=self.registry
        )
        self.run_seconds = Histogram(
            PREFIX + "e2e_request_latency_seconds", "Arrival to last event", buckets=SECONDS, registry=self.registry
        )
        self.constrained = Counter(
            PREFIX + "constrained_requests", "Requests whose output a grammar bound", registry=self.registry
        )

    def answered(self, route: str, status: int, refused: str = "") -> None:
        """Count an answer by its route's path and its status; `refused`: the error's kind."""
        self.requests.labels(route=route, status=str(status)).inc()
        if refused:
            self.refused.labels(reason=refused).inc()

    def watch_engine(self, read: Callable[[], Mapping[str, float]]) -> None:
        self.registry.register(EngineCollector(read))

    def watch_sharing(self, read: Callable[[], Mapping[str, float]]) -> None:
        self.registry.register(EngineCollector(read, "the runs shared with other gateways"))

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def configure_logging(level: str) -> None:
    """One line a record on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("agent_server")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
