"""Metrics and logs. Metrics have vLLM's names where it has them, so that its dashboards fit (`vllm:` becomes
`agent_server:`).

Nothing that a client sent appears in a log line or a label: no bodies, headers or prompts. The ids of runs, threads and
tenants appear only in JSON lines, in fields of their own.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

PREFIX = "agent_server:"
OUTAGES = frozenset({"OperationalError", "InterfaceError", "PostgresConnectionError", "CannotConnectNowError"})
"""Exception classes of SQLAlchemy, sqlite3, asyncpg and redis for an unavailable server or file, besides OSError."""
MAX_LINE = 500
CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029]")
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class NumbersCollector(Collector):
    """Exports numbers of the engine or of the sharing of runs, which it reads at scrape time.

    A name that ends in `_total` is a counter, `_sum` together with `_count` is a summary, all others are gauges. skip:
    metrics that are counted elsewhere, without a summary's suffix.
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
    """Names that are counted here, so that the engine's metrics of the same name are left out."""

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
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


FIELD_NAMES = 64
"""The most unknown fields that are counted by name; further ones are counted together."""
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class ServerTelemetry(Telemetry):
    """A server's metrics of requests and runs. Tokens and times are counted per run, whatever the engine. An engine's
    metrics with the same names are left out, since a name may occur only once in a scrape."""

    own = frozenset({"prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds"})

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.counter("http_requests", "Requests answered", "route", "status")
        self._request_counters: dict[tuple[str, int], Counter] = {}
        self.refused = self.counter("requests_refused", "Requests that were refused, by the error's kind", "reason")
        self.runs = self.counter("request_success", "Runs by how they ended", "reason")
        self.prompt_tokens = self.counter("prompt_tokens", "Prompt tokens of finished runs")
        self.output_tokens = self.counter("generation_tokens", "Generated tokens of finished runs")
        self.first_token = self.histogram("time_to_first_token_seconds", "Arrival to first token")
        self.run_seconds = self.histogram("e2e_request_latency_seconds", "Arrival to last event")
        self.constrained = self.counter("constrained_requests", "Requests whose output a grammar bound")
        self._ignored = self.counter("ignored_fields", "Unknown fields of requests, by name", "field")
        self._ignored_names: set[str] = set()
        self.removed = self.counter("threads_removed", "Threads removed for good, by why", "reason")
        self.sweeps = self.counter("retention_sweeps", "Looks for threads that are kept no longer", "result")

    def record_sweep(self, threads: int | None) -> None:
        """Count a retention sweep. threads: how many it removed; None if it failed."""
        self.sweeps.labels(result="failed" if threads is None else "done").inc()
        if threads:
            self.removed.labels(reason="retention").inc(threads)

    def record_answer(self, route: str, status: int, refused: str = "") -> None:
        """Count an answer by its route's path and status. refused: the error's kind."""
        counter = self._request_counters.get((route, status))
        if counter is None:
            counter = self._request_counters[route, status] = self.requests.labels(route=route, status=str(status))
        counter.inc()
        if refused:
            self.refused.labels(reason=refused).inc()

    def ignored(self, field: str) -> None:
        """Count an unknown field of a request. Clients choose the names, so the number and form of labels are
        limited."""
        if field not in self._ignored_names:
            if len(self._ignored_names) >= FIELD_NAMES or not _FIELD.fullmatch(field):
                field = "other"
            self._ignored_names.add(field)
        self._ignored.labels(field=field).inc()

    def watch_runs(self, active: Callable[[], int]) -> None:
        """Export the number of unfinished runs, including those that wait. active: returns it."""
        Gauge(PREFIX + "runs_open", "Runs going on", registry=self.registry).set_function(active)


class RepeatFilter(logging.Filter):
    """Passes the first LINES warnings or errors of one kind in a window of WINDOW seconds; the first one of the next
    window says how many were left out. A kind is a logger, an unformatted message and an exception class."""

    LINES, WINDOW, KINDS = 5, 10.0, 1000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, str, str], tuple[float, int]] = {}  # kind → start and number of lines

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.name, str(record.msg), type(_error_of(record)).__name__)
        start, count = self._windows.get(key, (-math.inf, 0))
        if now - start < self.WINDOW:
            self._windows[key] = start, count + 1
            return count < self.LINES
        if len(self._windows) >= self.KINDS:
            self._windows.clear()
        self._windows[key] = now, 1
        record.left_out = max(0, count - self.LINES)
        return True


class LineFormatter(logging.Formatter):
    """Formats a record as one line, followed by a traceback if the fault may be ours.

    For an unavailable database or network the first line of the exception is enough. Line breaks and terminal control
    characters are escaped, since for example a client's path may contain them.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return CONTROLS.sub(lambda match: ascii(match[0])[1:-1], super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        error = _error_of(record)
        if error is None or not _is_outage(error):
            return super().format(record) + _left_out(record)
        brief = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
        return f"{super().format(brief)}: {type(error).__name__}: {_first_line(error)}"[:MAX_LINE] + _left_out(record)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:MAX_LINE]


def _left_out(record: logging.LogRecord) -> str:
    count = record.__dict__.get("left_out", 0)
    return f" ({count} like it were left out)" if count else ""


def _is_outage(error: BaseException) -> bool:
    """Return whether an external service is unavailable. Classes are compared by name, since most libraries are
    optional."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OSError) or not names.isdisjoint(OUTAGES)


_ids: ContextVar[Mapping[str, str]] = ContextVar("log_ids", default=MappingProxyType({}))


def note_ids(**ids: str) -> None:
    """Add ids to log records of the current task and of tasks that it starts: request, trace, tenant, key, run, thread.
    Empty ids are left out."""
    new_ids = {name: value for name, value in ids.items() if value}
    if new_ids:
        _ids.set({**_ids.get(), **new_ids})


def noted_ids() -> Mapping[str, str]:
    """Return the ids that `note_ids` has noted in the current context."""
    return _ids.get()


class IdFilter(logging.Filter):
    """Adds the ids to a record where it is created, since a formatter may run in another context."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.ids = _ids.get()
        return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line: time, level, logger, message and ids; for an exception also its
    class and traceback, or its first line if an external service is unavailable."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **record.__dict__.get("ids", {}),
        }
        if (error := _error_of(record)) is not None:
            entry["error"] = type(error).__name__
            if _is_outage(error):
                entry["detail"] = _first_line(error)
            else:
                assert record.exc_info is not None
                entry["trace_back"] = self.formatException(record.exc_info)
        if count := record.__dict__.get("left_out", 0):
            entry["left_out"] = count
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(level: str, form: str = "text") -> None:
    """Log to standard error, including the web server's messages and the warnings of libraries. form: "text" or
    "json"."""
    handler = logging.StreamHandler(sys.stderr)
    line = LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else line)
    handler.addFilter(RepeatFilter())
    handler.addFilter(IdFilter())
    for name, least in (("agent_server", level.upper()), ("uvicorn.error", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False
    root = logging.getLogger()
    if not root.handlers:  # else Python writes the warnings of libraries as they are, as often as a client causes them
        root.addHandler(handler)
