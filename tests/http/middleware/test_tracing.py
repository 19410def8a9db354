"""Spans as a collector receives them: over real HTTP, in OTLP's own encoding."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from agent_server.agents import Agent, McpServer, tool
from agent_server.agents.mcp import sessions
from agent_server.engines.scripted import Script
from agent_server.observability.tracing import CAPTURE, outgoing, start_exporting
from tests.contract.engines import started, upstream
from tests.server import scripted, serving

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "canary-7731"
MCP_SERVER = Path(__file__).parents[2] / "agents" / "mcp_server.py"
CALLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
ASKED = {
    "threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [{"id": "u", "role": "user", "content": "So?"}],
}  # fmt: skip


class Collector:
    """An OTLP receiver: `POST /v1/traces` in protobuf."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
                body = self.rfile.read(int(self.headers["content-length"]))
                sent = ExportTraceServiceRequest.FromString(body)
                collector.spans += [
                    each for of in sent.resource_spans for scope in of.scope_spans for each in scope.spans
                ]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take_all(self) -> list[Any]:
        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider) and provider.force_flush()
        found, self.spans = self.spans, []
        return found

    def take(self) -> dict[str, Any]:
        return {each.name: each for each in self.take_all()}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    with pytest.MonkeyPatch.context() as patched:  # a process has one provider, which later tests keep
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        assert start_exporting()
    yield made
    trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]
    made.close()


@tool
def tide(harbour: str) -> str:
    """Tell the tide."""
    return f"High at noon in {harbour} {SECRET} {outgoing().get('traceparent', '')}"


async def talk(collector: Collector) -> tuple[dict[str, Any], str]:
    """The spans of one run with a tool, by name, and the run's answer."""
    call = f'<tool_call>\n{{"name": "tide", "arguments": {{"harbour": "{SECRET}"}}}}\n</tool_call>'
    engine = scripted([Script(text=call), Script(text="At noon.")])
    async with (
        serving(engine, agents=[Agent(name="sailor", tools=[tide])]) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        sent = {
            "threadId": "t", "runId": "r", "protocolVersion": "1.0",
            "messages": [{"id": "u", "role": "user", "content": SECRET}],
        }  # fmt: skip
        answer = await http.post("/agui", json=sent, headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
    return collector.take(), answer.text


def told(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    found: dict[str, Any] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


async def test_a_run_with_a_tool_is_one_trace_of_the_caller_s(collector: Collector):
    spans, answer = await talk(collector)
    assert "RUN_FINISHED" in answer
    run, chat, call = spans["invoke_agent default"], spans["chat agent-server-demo"], spans["execute_tool tide"]
    assert {each.trace_id.hex() for each in spans.values()} == {TRACE}
    above = {each.span_id: each for each in spans.values()}
    request = above[run.parent_span_id]  # the web framework's own
    assert request.kind == 2 and request.parent_span_id.hex() == CALLER, request
    assert chat.parent_span_id == call.parent_span_id == run.span_id
    assert f"00-{TRACE}-{call.span_id.hex()}-01" in answer  # what the tool would hand on
    of_chat, of_call, of_run = told(chat), told(call), told(run)
    first = of_chat.pop("gen_ai.response.time_to_first_chunk")
    assert first >= 0
    assert of_chat["gen_ai.operation.name"] == "chat" and of_chat["gen_ai.response.finish_reasons"] == ["stop"]
    assert of_chat["gen_ai.usage.input_tokens"] > 0 and of_chat["gen_ai.usage.output_tokens"] > 0
    assert of_run["gen_ai.conversation.id"] == "t" and of_run["agent_server.run.id"] == "r"
    assert of_run["gen_ai.usage.input_tokens"] > of_chat["gen_ai.usage.input_tokens"]  # of two turns
    assert of_call["gen_ai.tool.name"] == "tide" and of_call["gen_ai.operation.name"] == "execute_tool"
    assert SECRET not in str(spans)


async def test_what_was_said_is_in_a_trace_where_the_operator_wants_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(CAPTURE, "true")
    spans, _ = await talk(collector)
    call, chat = told(spans["execute_tool tide"]), told(spans["chat agent-server-demo"])
    assert json.loads(call["gen_ai.tool.call.arguments"]) == {"harbour": SECRET}
    assert SECRET in call["gen_ai.tool.call.result"] and SECRET in chat["gen_ai.input.messages"]
    assert "At noon." in chat["gen_ai.output.messages"]


async def test_an_mcp_server_is_told_the_trace(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the package's own span of the call, which stands below the tool's."""
    monkeypatch.setattr(sessions, "WAIT_SECONDS", 60.0)  # a busy machine takes its time to start one
    box = McpServer(name="box", command=(sys.executable, str(MCP_SERVER), str(tmp_path / "pid")))
    engine = scripted(
        [Script(text='<tool_call>\n{"name": "traced", "arguments": {}}\n</tool_call>'), Script(text="So.")]
    )
    async with (
        serving(engine, agents=[Agent(name="sailor", mcp_servers=[box])]) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        answer = (await http.post("/agui", json=ASKED, headers=CALLED)).text
    spans = collector.take_all()
    (call,) = [each for each in spans if each.name == "execute_tool traced"]
    told = next(each for each in spans if f"00-{TRACE}-{each.span_id.hex()}-01" in answer)
    above = {each.span_id: each for each in spans}
    while told.span_id != call.span_id:
        told = above[told.parent_span_id]


async def test_an_upstream_server_s_spans_stand_below_the_turn(collector: Collector):
    async with (
        serving(scripted("Yes.")) as other,
        started(upstream(other.url)) as engine,
        serving(engine) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        assert "RUN_FINISHED" in (await http.post("/agui", json=ASKED, headers=CALLED)).text
    spans = [each for each in collector.take_all() if each.trace_id.hex() == TRACE]
    above = {each.span_id: each for each in spans}
    here, there = [each for each in spans if each.name.startswith("chat")], []
    for each in spans:
        chain = [each]
        while chain[-1].parent_span_id in above:
            chain.append(above[chain[-1].parent_span_id])
        there += [each] if sum(one.name.startswith("chat") for one in chain) == 2 else []
    assert len(here) == 2 and here[0].span_id != here[1].span_id
    assert [each.name.partition(" ")[0] for each in there] == ["chat"], "one turn stands below the other"


async def test_a_run_that_fails_is_told_by_its_kind(collector: Collector):
    async with (
        serving(scripted([])) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        sent = {"threadId": "t", "runId": "r2", "protocolVersion": "1.0", "messages": []}
        await http.post("/agui", json=sent)
    found = told(collector.take()["invoke_agent default"])
    assert found["error.type"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_nothing_is_exported_unless_it_is_wanted(environment: dict[str, str]):
    assert not start_exporting(environment)
