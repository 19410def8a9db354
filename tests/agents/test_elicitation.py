"""MCP servers that ask the user: in the multi round-trip requests of the newest protocol, and while a request is open."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import jsonschema
import pytest

from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp.sessions import McpSession
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome, RunFinished, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

SERVER = str(Path(__file__).with_name("eliciting_server.py"))
STDIO = McpServer(name="box", command=(sys.executable, SERVER))


@pytest.fixture
def over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    yield McpServer(name="box", url=f"http://127.0.0.1:{port}/mcp")
    process.kill()
    process.wait()


@pytest.fixture(params=["stdio", "http"])
def server(request):
    return STDIO if request.param == "stdio" else request.getfixturevalue("over_http")


@pytest.fixture
def earlier_protocol(monkeypatch):
    """Sessions as servers of the protocol 2025-11-25 have them."""
    opened = McpSession._open
    monkeypatch.setattr(McpSession, "_open", lambda self, mode, deadline: opened(self, "legacy", deadline))


def house(*scripts: str, server: McpServer = STDIO, store: str | None = "sqlite://", **more) -> House:
    model = Model([*scripts, "Done."])
    agent = Agent(name="default", mcp_servers=[server])
    return House(agent, model, None if store is None else Store(store), **more)


def questions(events) -> list:
    last = events[-1]
    assert isinstance(last, RunFinished) and isinstance(last.outcome, InterruptOutcome), last
    for each in last.outcome.interrupts:
        jsonschema.Draft202012Validator.check_schema(each.response_schema)
    return list(last.outcome.interrupts)


def answer(interrupt, payload) -> dict:
    return {"interruptId": interrupt.id, "status": "resolved", "payload": payload}


def results(events) -> list[str]:
    return [each.content for each in of(events, ToolCallResult)]


async def test_questions_of_one_call_are_asked_in_turn_and_continue_on_another_gateway(server, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with house(call("reserve"), server=server, store=url) as first:
        (day,) = questions(await first.ask("go"))
        assert (day.message, day.metadata["mode"]) == ("Which day?", "form")
        assert day.response_schema["properties"]["day"]["type"] == "string"
        (seats,) = questions(await first.resume(answer(day, {"day": "Monday"})))
    async with house(server=server, store=url, first_id=1000) as second:
        second.messages, second.runs = first.messages, first.runs
        (pay,) = questions(await second.resume(answer(seats, {"seats": 2})))
        assert pay.metadata == {"mcpServer": "box", "mode": "url", "url": "https://pay.example/1"}
        assert pay.message == "Pay here\nhttps://pay.example/1"
        events = await second.resume(answer(pay, {"approved": True}))
    assert results(events) == ["day accept {'day': 'Monday'}, seats accept {'row': 'any', 'seats': 2}, pay accept"]


async def test_a_form_is_declined_or_cancelled_and_a_link_refused():
    async with house(call("reserve")) as asking:
        (day,) = questions(await asking.ask("go"))
        (seats,) = questions(await asking.resume(answer(day, day.metadata["declinePayload"])))
        (pay,) = questions(await asking.resume({"interruptId": seats.id, "status": "cancelled"}))
        events = await asking.resume(answer(pay, {"approved": False}))
    assert results(events) == ["day decline, seats cancel, pay decline"]


async def test_an_answer_that_does_not_fit_the_form_is_asked_again():
    async with house(call("reserve")) as asking:
        (day,) = questions(await asking.ask("go"))
        (again,) = questions(await asking.resume(answer(day, {"day": 3})))
        assert again.id == day.id and "does not fit" in again.message
        (seats,) = questions(await asking.resume(answer(again, {"day": "Monday"})))
    assert seats.message == "How many seats?"


async def test_where_no_person_can_be_asked_questions_are_declined_with_a_warning():
    async with house(call("reserve"), store=None) as asking:
        events = await asking.ask("go")
    assert results(events) == ["day decline, seats decline, pay decline"]
    (warning,) = events[-1].metadata["warnings"]
    assert "declined, since this connection cannot ask a person" in warning


async def test_what_is_not_asked_of_a_person_is_refused_and_a_bare_state_is_polled():
    async with house(call("think") + call("later")) as asking:
        events = await asking.ask("go")
    refused, polled = results(events)
    assert "requires sampling/createMessage of its client" in refused and polled == "now"


@pytest.mark.usefixtures("earlier_protocol")
async def test_a_request_stays_open_for_the_answers_to_what_is_asked_in_it(server):
    async with house(call("book") + call("book"), server=server) as asking:
        days = questions(await asking.ask("go"))
        assert [each.message for each in days] == ["Which day?"] * 2
        seats = questions(await asking.resume(*(answer(each, {"day": d}) for each, d in zip(days, "AB", strict=True))))
        events = await asking.resume(*(answer(each, {"seats": n}) for n, each in enumerate(seats)))
    assert sorted(results(events)) == ["A 0", "B 1"]  # the server behind both answers in its own order


@pytest.mark.usefixtures("earlier_protocol")
async def test_calls_of_two_threads_never_get_each_other_s_questions():
    async with house(call("book"), call("book")) as asking:
        (first,) = questions(await asking.ask("go"))
        mine, asking.messages = asking.messages, []
        (second,) = questions(await asking.ask("go", threadId="other"))
        declined = await asking.resume(answer(second, "decline"), threadId="other")
        asking.messages = mine
        (seats,) = questions(await asking.resume(answer(first, {"day": "Monday"})))
        events = await asking.resume(answer(seats, {"seats": 2}))
    assert (results(declined), results(events)) == (["day decline"], ["Monday 2"])


@pytest.mark.usefixtures("earlier_protocol")
@pytest.mark.parametrize(
    ("tool", "result"), [("book_again", "Monday 2"), ("book", "Error: book: The server restarted while the user")]
)
async def test_an_open_request_that_a_restart_ended_is_made_again_where_that_does_no_harm(tool, result, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with house(call(tool), store=url) as first:
        (day,) = questions(await first.ask("go"))
        (seats,) = questions(await first.resume(answer(day, {"day": "Monday"})))
    async with house(store=url, first_id=1000) as second:
        second.messages, second.runs = first.messages, first.runs
        (content,) = results(await second.resume(answer(seats, {"seats": 2})))
    assert content.startswith(result)


@pytest.mark.usefixtures("earlier_protocol")
async def test_a_page_that_must_be_visited_first_is_asked_for_and_the_call_made_again():
    async with house(call("private")) as asking:
        (link,) = questions(await asking.ask("go"))
        assert link.metadata["url"] == "https://login.example/"
        assert results(await asking.resume(answer(link, {"approved": True}))) == ["yours"]
    async with house(call("private")) as asking:
        (link,) = questions(await asking.ask("go"))
        (content,) = results(await asking.resume(answer(link, {"approved": False})))
    assert "the user declined" in content
