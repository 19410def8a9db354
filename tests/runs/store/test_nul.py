"""Texts that one database holds and the other does not, and errors that tell nothing of what was written."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from agent_server.runs.store import Store
from tests.agents.guests.talking import body, user
from tests.runs.store.conftest import fresh_database
from tests.server import scripted, serving

NUL = "\x00"
SECRET = "canary-9930"
ASKED: list[tuple[str, str, Any]] = [
    ("GET", "/agui/threads/%00", None),
    ("GET", "/agui/threads/%00/messages", None),
    ("DELETE", "/agui/threads/%00", None),
    ("PATCH", "/agui/threads/%00", {"name": SECRET}),
    ("POST", "/agui/threads/t1/removed/%00/restore", None),
    ("POST", "/agui/threads/t1/feedback", {"messageId": f"u{NUL}", "score": 1, "comment": SECRET}),
    ("GET", "/agui/threads?agentId=%00", None),
    ("GET", "/copilotkit/threads/%00/messages", None),
    ("POST", "/copilotkit/threads/%00/archive", None),
    ("DELETE", "/copilotkit/threads/%00", None),
    ("POST", "/copilotkit/agent/default/connect", {"threadId": NUL}),
    ("GET", "/v1/responses/resp_%00", None),
    ("POST", "/v1/responses", {"model": "default", "input": SECRET, "previous_response_id": NUL}),
    ("DELETE", "/v1/conversations/conv_%00", None),
]


async def test_a_nul_is_refused_and_no_fault_of_ours(postgres_server: str, caplog: pytest.LogCaptureFixture):
    url = await fresh_database(postgres_server)
    async with (
        serving(scripted("Hi."), store_url=url) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as client,
    ):
        await client.post("/agui", json=body(user("Hi")))
        with caplog.at_level(logging.INFO):
            for method, path, sent in ASKED:
                answer = await client.request(method, path, json=sent)
                assert 400 <= answer.status_code < 500, (method, path, answer.status_code, answer.text)
            odd = await client.post("/agui", json=body(user(f"About {SECRET}", f"u{NUL}"), thread="t2", run="r2"))
        assert '"RUN_ERROR"' in odd.text and '"invalid_request"' in odd.text, odd.text
    assert SECRET not in caplog.text and "Traceback" not in caplog.text


async def test_an_error_of_the_database_does_not_tell_what_was_written(store: Store):
    with pytest.raises(DBAPIError) as raised:
        await store.write(
            lambda connection: connection.execute(text("INSERT INTO nothing VALUES (:it)"), {"it": SECRET})
        )
    assert SECRET not in str(raised.value)
