"""Each client sends a document, and the model's prompt has its text."""

from __future__ import annotations

import asyncio
import base64

import anthropic
import httpx
import openai
import pytest

from agent_server.engines.scripted import Script
from tests.conformance.node import NodeClients
from tests.media.papers import pdf
from tests.server import scripted, serving

DATA = base64.b64encode(pdf("The quick fox")).decode()
URL = f"data:application/pdf;base64,{DATA}"
ASK = "Sum it up."


@pytest.fixture
async def running():
    prompts = []

    def answer(request):
        prompts.append(request.prompt_token_ids)
        return Script(text="A fox.")

    async with serving(scripted(answer), demo=False) as server:
        yield server
        [ids] = prompts
        text = server.server.model.prompts.detokenize(ids)
    assert f"{ASK}\nDocument fox.pdf:\nThe quick fox" in text


async def test_openai_chat(running):
    file = {"type": "file", "file": {"filename": "fox.pdf", "file_data": URL}}
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": [{"type": "text", "text": ASK}, file]}]
        )
    assert answer.choices[0].message.content == "A fox."


async def test_openai_responses(running):
    file = {"type": "input_file", "filename": "fox.pdf", "file_data": URL}
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        answer = await client.responses.create(
            model="default", input=[{"role": "user", "content": [{"type": "input_text", "text": ASK}, file]}]
        )
    assert answer.output_text == "A fox."


async def test_anthropic(running):
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    block = {"type": "document", "source": source, "title": "fox.pdf"}
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
        answer = await client.messages.create(
            model="default",
            max_tokens=50,
            messages=[{"role": "user", "content": [{"type": "text", "text": ASK}, block]}],
        )
    assert answer.content[-1].text == "A fox."


@pytest.mark.parametrize("client", ["1.0.0", "0.0.59"])
async def test_ag_ui(running, node_clients: NodeClients, client):
    source = {"type": "data", "value": DATA, "mimeType": "application/pdf"}
    parts = [{"type": "text", "text": ASK}, {"type": "document", "source": source, "metadata": {"filename": "fox.pdf"}}]
    entry = {"url": f"{running.url}/agui", "client": client, "turns": [parts]}
    [report] = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
    assert report["problems"] == []
    assert report["messages"][-1]["content"] == "A fox."


@pytest.mark.parametrize("form", ["document", "binary"])
async def test_what_copilotkit_uploads(running, form):
    source = {"type": "data", "value": DATA, "mimeType": "application/pdf"}
    file = {"type": "document", "source": source, "metadata": {"filename": "fox.pdf"}}
    if form == "binary":
        file = {"type": "binary", "mimeType": "application/pdf", "data": DATA, "filename": "fox.pdf"}
    body = {
        "threadId": f"t-{form}", "runId": "r1", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "m1", "role": "user", "content": [{"type": "text", "text": ASK}, file]}],
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/copilotkit/agent/default/run", json=body)
        info = (await client.get("/copilotkit/info")).json()
    assert "RUN_FINISHED" in answer.text
    assert info["agents"]["default"]["capabilities"]["multimodal"]["input"]["pdf"] is True
