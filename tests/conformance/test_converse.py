"""The conversation driver, against a small server that answers with recorded events."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from adapters.agui import SSE, SseEncoder, parse
from events import vocabulary as v
from events.lifecycle import Verifier

TOOL = {"name": "get_weather", "description": "The weather in a city", "parameters": {"type": "object"}}


def answer(run_input: Any) -> Iterator[v.Event]:
    """Think and call the client's tool; once its result is there, answer from it."""
    ids = {"thread_id": run_input.thread_id, "run_id": run_input.run_id}
    last = run_input.messages[-1]
    name = f"m{len(run_input.messages)}"
    yield v.RunStarted(**ids, protocol_version="1.0")
    if last.role == "user":
        yield v.ReasoningStart(message_id=f"{name}-r")
        yield v.ReasoningMessageStart(message_id=f"{name}-r", role="reasoning")
        yield v.ReasoningMessageContent(message_id=f"{name}-r", delta="They ask about ☔.")
        yield v.ReasoningMessageEnd(message_id=f"{name}-r")
        yield v.ReasoningEnd(message_id=f"{name}-r")
        yield v.ToolCallStart(tool_call_id=f"{name}-c", tool_call_name="get_weather", parent_message_id=name)
        yield v.ToolCallArgs(tool_call_id=f"{name}-c", delta='{"city":')
        yield v.ToolCallArgs(tool_call_id=f"{name}-c", delta='"Oslo"}')
        yield v.ToolCallEnd(tool_call_id=f"{name}-c")
        outcome = v.SuccessOutcome(pending_tool_call_ids=[f"{name}-c"])
        yield v.RunFinished(**ids, outcome=outcome, usage=[v.TokenUsage(input_tokens=3, output_tokens=4)])
        return
    yield v.TextMessageStart(message_id=name, role="assistant")
    yield v.TextMessageContent(message_id=name, delta=f"It is {last.content}.")
    yield v.TextMessageEnd(message_id=name)
    yield v.RunFinished(**ids, outcome=v.SuccessOutcome())


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        inbound = parse(self.rfile.read(int(self.headers["Content-Length"])), new_id=str)
        encoder, verifier = SseEncoder(legacy=inbound.extra.legacy), Verifier(strict=True)
        body = b""
        for sequence, event in enumerate(answer(inbound.input), 1):
            verifier.check(event)
            body += encoder.encode(event, sequence=sequence) + encoder.keep_alive()
        self.send_response(200)
        self.send_header("Content-Type", SSE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("client", ["1.0.0", "0.0.59"])
def test_a_conversation_with_reasoning_a_client_tool_and_an_answer(node_clients, url, client):
    entry = {
        "url": url,
        "client": client,
        "tools": [TOOL],
        "results": {"get_weather": {"sky": "grey"}},
        "turns": ["Oslo?"],
    }
    (report,) = node_clients.run("converse.mjs", [entry])
    assert report["problems"] == []
    assert [run["error"] for run in report["runs"]] == [None, None]
    roles = [message["role"] for message in report["messages"]]
    assert roles == ["user", "reasoning", "assistant", "tool", "assistant"]
    assert report["messages"][1]["content"] == "They ask about ☔."
    assert json.loads(report["messages"][2]["toolCalls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert report["messages"][4]["content"] == 'It is {"sky":"grey"}.'
    assert report["runs"][0]["usage"] == [{"inputTokens": 3, "outputTokens": 4}]


def test_a_rejected_event_shows(node_clients, url):
    entry = {
        "url": url,
        "turns": ["a"],
        "tools": [],
        "results": {"get_weather": 1},
        "context": [{"description": 5, "value": ""}],
    }
    (report,) = node_clients.run("converse.mjs", [entry])
    assert report["runs"][0]["error"]
