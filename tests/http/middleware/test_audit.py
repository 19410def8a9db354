"""Each action that the audit log is for leaves one line that says who did what."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest, new_secret
from agent_server.http.server import StartupError
from agent_server.observability.audit import AuditLog, note, use_audit
from tests.server import scripted, serving

SAID = "canary-5120"


@tool(requires_approval=True)
def wipe(target: str) -> str:
    """Wipe something."""
    return f"wiped {target}"


def asks() -> list[Script]:
    call = f'<tool_call>\n{{"name": "wipe", "arguments": {{"target": "{SAID}"}}}}\n</tool_call>'
    return [Script(text=call), Script(text="Done.")]


class Client:
    def __init__(self, http: httpx.AsyncClient, log: Path) -> None:
        self.http, self._log = http, log
        self._runs = 0

    async def run(self, thread: str = "t", messages: list[Any] | None = None, **more: Any) -> list[dict[str, Any]]:
        self._runs += 1
        sent = {
            "threadId": thread,
            "runId": f"r{self._runs}",
            "protocolVersion": "1.0",
            "messages": messages or [],
            **more,
        }
        text = (await self.http.post("/agui", json=sent)).text
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]

    async def told(self) -> list[dict[str, Any]]:
        """What is in the log, without times and the ids of requests."""
        await asyncio.sleep(0.05)
        entries = [json.loads(line) for line in self._log.read_text().splitlines()]
        assert SAID not in self._log.read_text()
        for entry in entries:
            entry.pop("trace", None)  # of a tracer that another test of this process set up
            assert entry.pop("time").endswith("Z") and entry.pop("request").startswith("req_")
            assert (entry.pop("tenant"), entry.pop("key")) == ("acme", "ops")
        return entries


def user(id: str = "u", content: str = SAID) -> dict[str, Any]:
    return {"id": id, "role": "user", "content": content}


@contextlib.asynccontextmanager
async def client(folder: Path, engine: Any = None, **more: Any) -> AsyncIterator[Client]:
    """A client with a named key of a server with an audit log."""
    secret = new_secret()
    add_key(folder / "keys.toml", KeyEntry(name="ops", hash=digest(secret), tenant="acme"))
    given = {"keys_file": folder / "keys.toml", "audit_log": folder / "logs" / "audit.jsonl", **more}
    async with (
        serving(engine or scripted([Script(text="Yes.")] * 9), **given) as running,
        httpx.AsyncClient(base_url=running.url, headers={"x-api-key": secret}) as http,
    ):
        yield Client(http, folder / "logs" / "audit.jsonl")


@pytest.mark.parametrize(
    ("payload", "action"),
    [
        ({"approved": True}, "call.approved"),
        ({"approved": False}, "call.refused"),
        ({"approved": True, "editedArgs": {"target": "less"}}, "call.edited"),
    ],
)
async def test_what_a_person_said_to_a_call(payload: dict[str, Any], action: str, tmp_path: Path):
    async with client(tmp_path, scripted(asks()), agents=[Agent(name="default", tools=[wipe])]) as acme:
        asked = (await acme.run(messages=[user()]))[-1]["outcome"]["interrupts"][0]
        assert await acme.told() == []
        answer = {"interruptId": asked["id"], "status": "resolved", "payload": payload}
        assert (await acme.run(resume=[answer]))[-1]["type"] == "RUN_FINISHED"
        await acme.run(resume=[answer])  # repeated, which does nothing twice
        (entry,) = await acme.told()
    assert entry == {
        "action": action, "thread": "t", "run": "r2", "tool": "wipe", "tool_call": asked["toolCallId"],
        "interrupt": asked["id"],
    }  # fmt: skip


async def test_what_is_edited_deleted_restored_and_stopped(tmp_path: Path):
    async with client(tmp_path) as acme:
        await acme.run(messages=[user()])
        await acme.run(messages=[user()])  # asked again: the answer is replaced
        (removed,) = (await acme.http.get("/agui/threads/t/removed")).json()["removed"]
        await acme.http.post(f"/agui/threads/t/removed/{removed['id']}/restore")
        await acme.http.delete("/agui/threads/t/messages/u")
        await acme.http.delete("/agui/threads/t/messages/nothing")  # a 404, which does nothing
        await acme.http.delete("/agui/threads/t")
        entries = await acme.told()
    assert [(entry["action"], entry["thread"]) for entry in entries] == [
        ("messages.edited", "t"), ("messages.restored", "t"), ("message.deleted", "t"), ("thread.deleted", "t"),
    ]  # fmt: skip
    assert entries[0]["run"] == "r2" and entries[0]["messages"] == 1 and entries[0]["removal"] == removed["id"]
    assert entries[1]["removal"] == removed["id"] and entries[2]["message"] == "u"


async def test_who_stopped_a_run_and_deleted_a_response(tmp_path: Path):
    async with client(tmp_path, scripted([Script(text="word " * 50, delay=0.02)] * 3)) as acme:
        running = asyncio.create_task(acme.run(messages=[user()]))
        async with asyncio.timeout(10):
            while (await acme.http.post("/agui/runs/r1/cancel")).status_code != 202:
                await asyncio.sleep(0.01)
        assert (await running)[-1]["outcome"]["type"] == "cancelled"
        await acme.http.post("/agui/runs/r1/cancel")  # has ended: nothing is done
        asked = {"model": "default", "input": SAID, "max_output_tokens": 1}
        response = (await acme.http.post("/v1/responses", json=asked)).json()["id"]
        assert (await acme.http.delete(f"/v1/responses/{response}")).status_code == 200
        entries = await acme.told()
    assert entries == [
        {"action": "run.stopped", "thread": "t", "run": "r1"},
        {"action": "response.deleted", "response": response},
    ]


def test_a_file_is_appended_to_and_its_owner_s_alone(tmp_path: Path):
    for action in ("one", "two"):
        log = AuditLog(tmp_path / "audit.jsonl")
        use_audit(log)
        note(action, thread="line\nbreak", run="")
        log.close()
        log.close()
        use_audit(None)
        note("lost")
    written = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in written] == ["one", "two"]
    assert json.loads(written[0])["thread"] == "line\nbreak" and "run" not in json.loads(written[0])
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


async def test_a_log_that_cannot_be_opened_stops_the_start(tmp_path: Path):
    with pytest.raises(StartupError, match="cannot be opened"):
        async with serving(scripted("x"), audit_log=tmp_path):
            pass
