"""Traces by OpenTelemetry's semantic conventions for generative AI (`invoke_agent`, `chat`, `execute_tool`).

Only OpenTelemetry's API is needed here; without an SDK a span is an object that does nothing. Everything is set by
OpenTelemetry's own variables. What people and the model said is left out unless
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is `true`.

W3C's trace context alone is taken from requests and handed on, baggage is not: clients could send anything in it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger("agent_server")
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SWITCHES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROVIDER = "agent_server"
MAX_CONTENT = 64 * 1024
"""Characters of what was said in one attribute."""
_W3C = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("agent_server")
_NO_SPAN: AbstractContextManager[Span] = nullcontext(trace.INVALID_SPAN)


def join_trace(headers: Mapping[bytes, bytes]) -> str:
    """Continue the trace that a request names, in this task and those that it starts. headers: by names in lower case.
    Returns the trace's id; "" if there is none."""
    if b"traceparent" in headers:
        names = [name for name in (b"traceparent", b"tracestate") if name in headers]
        attach(_W3C.extract({name.decode(): headers[name].decode("latin-1") for name in names}))
    return current_trace()


def nobody_traces() -> bool:
    """Whether no tracing was set up, so that all spans are objects that do nothing."""
    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def outgoing() -> dict[str, str]:
    """The headers that hand the current trace on; {} where there is none."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def span(
    operation: str, of: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: str
) -> AbstractContextManager[Span]:
    """A span `operation of` around some work. attributes: without `gen_ai.` in front, with `__` for their dots. What is
    raised is told by its class; its message may hold what somebody said."""
    if nobody_traces():
        return _NO_SPAN
    return _opened(operation, of, kind, attributes)


@contextmanager
def _opened(operation: str, of: str, kind: SpanKind, attributes: Mapping[str, str]) -> Iterator[Span]:
    given = {f"gen_ai.{name.replace('__', '.')}": value for name, value in attributes.items() if value}
    given["gen_ai.operation.name"] = operation
    name = f"{operation} {of}" if of else operation
    with _tracer.start_as_current_span(
        name, kind=kind, attributes=given, record_exception=False, set_status_on_exception=False
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            failed(opened, type(error).__name__)
            raise


def failed(opened: Span, kind: str) -> None:
    """Mark a span as that of something that failed. kind: an error's kind or class."""
    opened.set_attribute("error.type", kind)
    opened.set_status(Status(StatusCode.ERROR))


def note(opened: Span, **attributes: str | int | float | list[str] | None) -> None:
    """Set attributes of `gen_ai.`; those that are None are left out."""
    if opened.is_recording():
        for name, value in attributes.items():
            if value is not None:
                opened.set_attribute(f"gen_ai.{name.replace('__', '.')}", value)


def wants_content(opened: Span) -> bool:
    """Whether what was said is to be in the span."""
    return opened.is_recording() and os.environ.get(CAPTURE, "").lower() == "true"


def note_content(opened: Span, **said: object) -> None:
    """Set attributes that hold what was said, as JSON, where the operator wants that."""
    if wants_content(opened):
        for name, value in said.items():
            text = json.dumps(value, ensure_ascii=False, default=str)
            opened.set_attribute(f"gen_ai.{name.replace('__', '.')}", text[:MAX_CONTENT])


def happened(what: str, **about: str) -> None:
    """Note on the current span that something happened. about: `agent_server.` attributes."""
    named = {f"agent_server.{name.replace('__', '.')}": value for name, value in about.items()}
    trace.get_current_span().add_event(f"agent_server.{what}", named)


def current_trace() -> str:
    """The id of the trace that is being made or continued; "" if there is none."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def start_exporting(environment: Mapping[str, str] = os.environ) -> bool:
    """Send spans to a collector, if OpenTelemetry's variables name one. Whether it does; without the extra it is logged
    what to install."""
    wanted = any(environment.get(name) for name in SWITCHES) and environment.get("OTEL_TRACES_EXPORTER") != "none"
    if not wanted or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("No traces are sent: that needs the extra, pip install 'agent-server[telemetry]'.")
        return False
    named = {} if environment.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "agent-server"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # its own exit handler sends what is left
    return True
