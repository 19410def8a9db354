"""Documents that users and tools send, read by guards as the model would read them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui.core import DataSource, DocumentPart, TextPart, ToolMessage, UserMessage

from agent_server.agents.guardrails import Forbidden, Guards, HookGuard, PatternGuard, check_documents
from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.scripted import Script
from agent_server.media.intake import Intake
from agent_server.settings import MediaLimits
from tests.agents.guests.graphs import graph
from tests.agents.guests.talking import body
from tests.media.papers import pdf
from tests.server import Running, scripted, serving

HERON = PatternGuard("heron", phrases=["blue heron"], message="We do not speak of that.")
DIVIDED = pdf("They say it is a blue", "heron, and not a goose")
GUARDS = '[[guard]]\nname = "heron"\nphrases = ["blue heron"]\nmessage = "We do not speak of that."\n'


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def document(data: bytes, name: str = "") -> DocumentPart:
    source = DataSource(value=encoded(data), mime_type="application/pdf")
    return DocumentPart(source=source, metadata={"filename": name} if name else None)


def sent(*parts: Any) -> UserMessage:
    return UserMessage(id="u", content=[TextPart(text="Read this."), *parts])


@pytest.fixture
async def intake() -> AsyncIterator[Intake]:
    made = Intake(MediaLimits(pages=5, seconds=20))
    yield made
    await made.close()


@pytest.mark.parametrize(
    "forbidden",
    [
        document(DIVIDED),
        document(b"It is a\nblue  heron."),
        document(pdf("Nothing"), "the blue heron.pdf"),
        document("the blue heron".encode("utf-16")),
    ],
    ids=["over two pages", "text", "name", "another encoding"],
)
async def test_a_document_is_read_as_the_model_would_read_it(intake: Intake, forbidden: DocumentPart) -> None:
    messages = await intake.texts([sent(document(pdf("Fine")), forbidden)])
    with pytest.raises(Forbidden, match="We do not speak of that"):
        await check_documents(Guards([HERON]), messages)
    await check_documents(Guards([HERON]), await intake.texts([sent(document(pdf("a blue")), document(pdf("heron")))]))


async def test_a_tools_document_counts_as_a_result(intake: Intake) -> None:
    messages = await intake.texts([ToolMessage(id="t", tool_call_id="c", content=[document(DIVIDED)])])
    prompts = PatternGuard("heron", phrases=["blue heron"], on=["prompt"])
    await check_documents(Guards([prompts]), messages)
    with pytest.raises(Forbidden) as told:
        await check_documents(Guards([prompts, HERON]), messages)
    assert told.value.where == "results"


async def test_a_function_is_asked_by_the_page_and_once(intake: Intake) -> None:
    asked: list[str] = []

    def rude(text: str) -> bool:
        asked.append(text)
        return "fool" in text

    guards = Guards([HookGuard("rude", rude)])
    messages = await intake.texts([sent(document(pdf("First", "Last"), "a.pdf"))])
    for _ in range(3):
        await check_documents(guards, messages)
    assert asked == ["Document a.pdf, page 1 of 2:\nFirst", "Document a.pdf, page 2 of 2:\nLast"]
    changed = await intake.texts([sent(document(pdf("First", "You fool"), "a.pdf"))])
    for _ in range(2):
        with pytest.raises(Forbidden):
            await check_documents(guards, changed)


async def test_a_page_without_text_is_no_fault_of_it_and_what_is_no_text_is_refused(intake: Intake) -> None:
    drawing = document(pdf(""))
    await check_documents(Guards([HERON]), await intake.texts([sent(drawing)]))
    with pytest.raises(EngineError, match="has no text"):
        await intake.documents([sent(drawing)], has_vision=False)
    with pytest.raises(EngineError, match="neither a PDF nor text"):
        await intake.texts([sent(document(b"PK\x03\x04\0\0"))])


# ---- over HTTP ------------------------------------------------------------------------------------------------------


def guarded(folder: Path) -> str:
    place = folder / "guards.toml"
    place.write_text(GUARDS)
    return str(place)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(
        scripted(lambda request: Script(text="Read.")), guard=(guarded(tmp_path),), demo=False
    ) as server:
        yield server


def agui(data: bytes, run: str = "r1") -> dict[str, Any]:
    part = {"type": "document", "source": {"type": "data", "value": encoded(data), "mimeType": "application/pdf"}}
    message = {"id": f"u{run}", "role": "user", "content": [{"type": "text", "text": "Read this."}, part]}
    return body(message, thread=f"thread-{run}", run=run)


async def test_of_a_forbidden_document_nothing_is_kept_and_the_model_is_not_asked(running: Running) -> None:
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded(DIVIDED)}"}
    content = [{"type": "text", "text": "Read this."}, {"type": "file", "file": file}]
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        chat = {"model": "default", "messages": [{"role": "user", "content": content}]}
        refused = await client.post("/v1/chat/completions", json=chat)
        told = await client.post("/agui", json=agui(DIVIDED))
        unknown = await client.get("/agui/threads/thread-r1")
        fine = await client.post("/agui", json=agui(pdf("A goose"), "r2"))
    assert refused.status_code == 400 and "We do not speak of that." in refused.text
    events = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: ")]
    assert [(event["type"], event.get("code")) for event in events] == [("RUN_ERROR", "content_filter")]
    assert unknown.status_code == 404
    assert "RUN_FINISHED" in fine.text and len(running.engine.requests) == 1


async def test_a_document_among_results_is_read_before_the_model_has_it(tmp_path: Path) -> None:
    place = tmp_path / "results.toml"
    place.write_text(f'{GUARDS}on = ["results"]\n')
    part = agui(DIVIDED)["messages"][0]["content"][1]
    call = {"id": "c", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
    messages = [
        {"id": "u", "role": "user", "content": "Fetch it."},
        {"id": "a", "role": "assistant", "toolCalls": [call]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": [part]},
    ]
    async with (
        serving(scripted("no"), guard=(str(place),), demo=False) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
    ):
        told = await client.post("/agui", json=body(*messages))
    assert '"finishReason":"content_filter"' in told.text and not running.engine.requests


async def test_another_frameworks_agent_is_not_told_of_it_either(tmp_path: Path) -> None:
    compiled = graph()
    async with (
        serving(scripted("no"), agents=[compiled], guard=(guarded(tmp_path),)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
    ):
        told = await client.post("/agui", json=agui(DIVIDED))
    assert "content_filter" in told.text and not compiled.model.seen
