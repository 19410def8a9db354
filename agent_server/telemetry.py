"""Metrics and logs. Names are vLLM's where it has one, so that dashboards fit (`vllm:` becomes `agent_server:`).

Nothing that a client sent goes into a log line or a label: no bodies, no headers, no prompts, no user's ids.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Container, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

PREFIX = "agent_server:"
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class NumbersCollector(Collector):
    """Reads numbers that somebody else keeps, at scrape time: the engine, or the sharing of runs.

    What ends in `_total` only grows and is a counter, `_sum` with a `_count` beside it is a summary, the rest are
    gauges. skip: names of metrics, without these endings of a summary, that are counted elsewhere.
    """

    def __init__(self, read: Callable[[], Mapping[str, float]], source: str, skip: Container[str] = ()) -> None:
        self._read = read
        self._source = source
        self._skip = skip

    def collect(self) -> Iterable[Metric]:
        values = self._read()
        for name, value in values.items():
            base, _, last = name.rpartition("_")
            if base in self._skip or name in self._skip or (last == "count" and f"{base}_sum" in values):
                continue
            text = f"{name.replace('_', ' ')}, of {self._source}"
            if last == "sum" and f"{base}_count" in values:
                yield SummaryMetricFamily(PREFIX + base, text, int(values[f"{base}_count"]), value)
            elif last == "total":
                yield CounterMetricFamily(PREFIX + name, text, value)
            else:
                yield GaugeMetricFamily(PREFIX + name, text, value)


class Telemetry:
    """One process's registry; nothing global, so that two servers in one process do not share numbers."""

    own: Container[str] = ()
    """Names that are counted here, and so are not the engine's to tell."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._connections = self.counter("connections_refused", "Connections refused or closed for a limit", "reason")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=SECONDS, registry=self.registry)

    def connection_refused(self, reason: str) -> None:
        self._connections.labels(reason=reason).inc()

    def watch_engine(self, read: Callable[[], Mapping[str, float]]) -> None:
        self.registry.register(NumbersCollector(read, "the engine", self.own))

    def watch_sharing(self, read: Callable[[], Mapping[str, float]]) -> None:
        self.registry.register(NumbersCollector(read, "the runs shared with other gateways"))

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


class ServerTelemetry(Telemetry):
    """What a server counts of its requests and runs. Tokens and times are those of runs, whatever engine made them; an
    engine's own of the same names are left out, since a name stands once in a scrape."""

    own = frozenset({"prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds"})

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.counter("http_requests", "Requests answered", "route", "status")
        self.refused = self.counter("requests_refused", "Requests that were refused, by the error's kind", "reason")
        self.runs = self.counter("request_success", "Runs by how they ended", "reason")
        self.prompt_tokens = self.counter("prompt_tokens", "Prompt tokens of finished runs")
        self.output_tokens = self.counter("generation_tokens", "Generated tokens of finished runs")
        self.first_token = self.histogram("time_to_first_token_seconds", "Arrival to first token")
        self.run_seconds = self.histogram("e2e_request_latency_seconds", "Arrival to last event")
        self.constrained = self.counter("constrained_requests", "Requests whose output a grammar bound")

    def answered(self, route: str, status: int, refused: str = "") -> None:
        """Count an answer by its route's path and its status; `refused`: the error's kind."""
        self.requests.labels(route=route, status=str(status)).inc()
        if refused:
            self.refused.labels(reason=refused).inc()

    def watch_runs(self, active: Callable[[], int]) -> None:
        """active: runs that have not ended, waiting ones included."""
        Gauge(PREFIX + "runs_open", "Runs going on", registry=self.registry).set_function(active)


def configure_logging(level: str) -> None:
    """One line a record on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("agent_server")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
