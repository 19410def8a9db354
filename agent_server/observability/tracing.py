"""Traces by OpenTelemetry's semantic conventions for generative AI (`invoke_agent`, `chat`, `execute_tool`).

Only OpenTelemetry's API is needed here; without an SDK, spans do nothing. Configuration is by OpenTelemetry's own
variables. The content of messages is left out unless OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is `true`.

Only W3C's trace context is read from requests and propagated. Baggage is not, since clients could send anything in it.
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
"""The most characters of content in one attribute."""
_W3C = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("agent_server")
_NO_SPAN: AbstractContextManager[Span] = nullcontext(trace.INVALID_SPAN)


def join_trace(headers: Mapping[bytes, bytes]) -> str:
    """Continue a request's trace in the current task and in tasks that it starts. headers: by lower-case name. Return
    the trace's id, or "" if there is none."""
    if b"traceparent" in headers:
        names = [name for name in (b"traceparent", b"tracestate") if name in headers]
        attach(_W3C.extract({name.decode(): headers[name].decode("latin-1") for name in names}))
    return current_trace()


def tracing_is_off() -> bool:
    """Return whether tracing is not set up, so that spans do nothing."""
    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def outgoing() -> dict[str, str]:
    """Return the headers that propagate the current trace, or {} if there is none."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return headers


def span(
    operation: str, of: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: str
) -> AbstractContextManager[Span]:
    """Open a span named `operation of`. attributes: names without the prefix `gen_ai.` and with `__` for dots. Of an
    exception only the class is recorded, since its message may contain user data."""
    if tracing_is_off():
        return _NO_SPAN
    return _opened(operation, of, kind, attributes)


@contextmanager
def _opened(operation: str, of: str, kind: SpanKind, attributes: Mapping[str, str]) -> Iterator[Span]:
    span_attributes = {f"gen_ai.{name.replace('__', '.')}": value for name, value in attributes.items() if value}
    span_attributes["gen_ai.operation.name"] = operation
    name = f"{operation} {of}" if of else operation
    with _tracer.start_as_current_span(
        name, kind=kind, attributes=span_attributes, record_exception=False, set_status_on_exception=False
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            mark_failed(opened, type(error).__name__)
            raise


def mark_failed(opened: Span, kind: str) -> None:
    """Mark a span as failed. kind: an error's kind or class."""
    opened.set_attribute("error.type", kind)
    opened.set_status(Status(StatusCode.ERROR))


def note(opened: Span, **attributes: str | int | float | list[str] | None) -> None:
    """Set attributes with the prefix `gen_ai.`; None values are left out."""
    if opened.is_recording():
        for name, value in attributes.items():
            if value is not None:
                opened.set_attribute(f"gen_ai.{name.replace('__', '.')}", value)


def wants_content(opened: Span) -> bool:
    """Return whether the operator wants the content of messages in this span."""
    return opened.is_recording() and os.environ.get(CAPTURE, "").lower() == "true"


def note_content(opened: Span, **content: object) -> None:
    """Set attributes with the content of messages as JSON, if the operator wants that."""
    if wants_content(opened):
        for name, value in content.items():
            text = json.dumps(value, ensure_ascii=False, default=str)
            opened.set_attribute(f"gen_ai.{name.replace('__', '.')}", text[:MAX_CONTENT])


def add_span_event(what: str, **about: str) -> None:
    """Add an event to the current span. about: attributes without the prefix `agent_server.`."""
    named = {f"agent_server.{name.replace('__', '.')}": value for name, value in about.items()}
    trace.get_current_span().add_event(f"agent_server.{what}", named)


def current_trace() -> str:
    """Return the current trace's id, or "" if there is none."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


def start_exporting(environment: Mapping[str, str] = os.environ) -> bool:
    """Send spans to a collector if OpenTelemetry's variables name one. Return whether it does.

    Without the extra `telemetry` a warning says what to install.
    """
    is_configured = (
        any(environment.get(name) for name in SWITCHES) and environment.get("OTEL_TRACES_EXPORTER") != "none"
    )
    if not is_configured or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("No traces are sent. Install the extra for them: pip install 'agent-server[telemetry]'.")
        return False
    named = {} if environment.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "agent-server"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # its exit handler sends the remaining spans
    return True
