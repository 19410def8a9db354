"""Agents of other frameworks, and one elsewhere, in conversations with both of the real clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from agent_server.agents.guests import RemoteAgent
from tests.agents.guests.agno_agents import agno_agent
from tests.agents.guests.graphs import graph
from tests.agents.guests.talking import PAINT, verified
from tests.agents.guests.test_ag2_guest import ag2_agent
from tests.agents.guests.test_llama_index_guest import llama_index_workflow
from tests.agents.guests.test_pydantic_ai_guest import traveller
from tests.conformance.node import NodeClients
from tests.server import scripted, serving

CLIENTS = ("1.0.0", "0.0.59")
TURNS = (
    "hi",
    'call weather {"place": "Oslo"}',
    'call weather {"place": "Atlantis"}',
    "call paint {}",
    'call book {"place": "Oslo"}',
    "and on",
)
ASKS = TURNS[4]
SILENT = ("llama",)
"""Guests that cannot ask a person in the middle of a tool."""


# AG2 1.2 leaves the streams of a question's first run to the garbage collector.
@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
async def test_conversations_of_both_clients_with_guests(node_clients: NodeClients) -> None:
    async with contextlib.AsyncExitStack() as stack:
        far = await stack.enter_async_context(serving(scripted("no"), agents=[traveller()]))
        own = graph()
        own.name = "langgraph"
        other = traveller()
        other.name = "pydantic"
        remote = RemoteAgent(f"{far.url}/agui", name="remote")
        more = [agno_agent(), ag2_agent(), llama_index_workflow()]
        running = await stack.enter_async_context(serving(scripted("no"), agents=[own, other, remote, *more]))
        asked = [
            (agent, client)
            for agent in ("langgraph", "pydantic", "remote", "agno", "ag2", "llama")
            for client in CLIENTS
        ]
        entries = [
            {
                "url": f"{running.url}/agui/{agent}", "client": client, "turns": [turn for turn in TURNS if agent not in SILENT or turn != ASKS],
                "tools": [PAINT],
                "results": {"paint": "red"}, "payload": "yes" if agent == "ag2" else {"approved": True}, "threadId": f"{agent}-{client}",
            }
            for agent, client in asked
        ]  # fmt: skip
        reports = await asyncio.to_thread(node_clients.run, "converse.mjs", entries)
    for (agent, client), report in zip(asked, reports, strict=True):
        check(agent, client, report)


async def test_a_conversation_of_assistant_ui_with_a_graph(node_clients: NodeClients) -> None:
    """assistant-ui 0.0.57 comes with the older client. With 1.0.0 it takes every success for the end, also where calls
    of the page's tools are pending, and with each it loses a question that follows another without a word."""
    own = graph()
    own.name = "graph"
    asks = {"paint": "call paint {}", "reserve": 'call reserve {"place": "Oslo"}'}
    async with serving(scripted("no"), agents=[own]) as running:
        entries = [
            {
                "url": f"{running.url}/agui/graph", "client": client, "threadId": client, "tools": [PAINT],
                "turns": [*TURNS[:3], *(asks[name] for name in names), "and on"],
                "results": {"paint": "red"}, "payload": {"approved": True},
            }
            for client, names in (("0.0.59", ("paint", "reserve")), ("1.0.0", ("reserve",)))
        ]  # fmt: skip
        old, new = await asyncio.to_thread(node_clients.run, "assistant_ui.mjs", entries)
    for report in (old, new):
        assert report["problems"] == [] and [run["error"] for run in report["runs"]] == [None] * len(report["runs"])
        for run in report["runs"]:
            verified(run["events"])
    common = [
        [("user", "hi")], [("reasoning", "Thinking")], [("assistant", "You said hi ")],
        [("user", TURNS[1])], [("weather", "Sun in Oslo")], [("assistant", "It says: Sun in Oslo ")],
        [("user", TURNS[2])], [("weather", FAILED)], [("assistant", f"It says: {FAILED} ")],
    ]  # fmt: skip
    painted = [[("user", asks["paint"])], [("paint", "red")], [("assistant", "It says: red ")]]
    reserved = [
        [("user", asks["reserve"])], [("reserve", "Reserved Oslo")], [("assistant", "It says: Reserved Oslo ")],
        [("user", "and on")], [("reasoning", "Thinking"), ("assistant", "You said and on ")],
    ]  # fmt: skip
    assert shown(old) == common + painted + reserved and shown(new) == common + reserved
    assert old["state"] == {"log": ["talked"] * 10}


FAILED = "Error: ValueError('There is no such place.')\n Please fix your mistakes."


def shown(report: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """What the page shows of each message: texts by who speaks, results by the tool."""
    return [
        [
            (part["name"], part["result"]) if part["kind"] == "call"
            else ("reasoning" if part["kind"] == "reasoning" else part["role"], part["text"])
            for part in message
        ]
        for message in report["parts"]
    ]  # fmt: skip


def check(agent: str, client: str, report: dict[str, Any]) -> None:
    where = f"{agent} with {client}"
    assert not report["problems"], (where, report["problems"])
    assert all(run["error"] is None and run.get("failed") is None for run in report["runs"]), (where, report["runs"])
    outcomes = [(run["outcome"] or {}).get("type") for run in report["runs"]]
    assert ("interrupt" in outcomes) is (agent not in SILENT), where
    messages = [each for each in report["messages"] if each["role"] != "reasoning"]
    assert ordered(messages), (where, [each["role"] for each in messages])
    texts = [each.get("content") for each in messages if each["role"] == "assistant" and each.get("content")]
    assert texts[0].strip() == "You said hi" and texts[-1].strip() == "You said and on", (where, texts)
    assert any("red" in str(text) for text in texts), (where, texts)
    assert agent in SILENT or any("Booked Oslo" in str(text) for text in texts), (where, texts)


def ordered(messages: list[dict[str, Any]]) -> bool:
    """Each result follows the message that made its call, or another of its results."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["toolCallId"] not in open_calls:
                return False
            open_calls.discard(message["toolCallId"])
        elif open_calls:
            return False
        open_calls |= {call["id"] for call in message.get("toolCalls") or ()}
    return True


@pytest.mark.parametrize("roles", [["call", "text", "result"], ["result", "call"]])
def test_the_order_check_can_fail(roles: list[str]) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "call": {"role": "assistant", "toolCalls": [{"id": "c"}]},
        "text": {"role": "assistant", "content": "x"},
        "result": {"role": "tool", "toolCallId": "c"},
    }
    assert not ordered([kinds[role] for role in roles])
