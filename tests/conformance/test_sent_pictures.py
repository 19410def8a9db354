"""Each client sends a picture to a tiny model that sees, and gets the tokens of transformers' `generate`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
import torch
import websockets
from transformers import AutoModelForImageTextToText

from adapters import sse
from agent_server.engines.embedded import EmbeddedEngine
from agent_server.engines.upstream import UpstreamEngine, parse_address
from agent_server.engines.upstream.model import load_model
from agent_server.generation.multimodal.picture_reader import load_picture_reader
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files import load_model_files
from agent_server.settings import UpstreamSettings
from tests.conformance.node import NodeClients
from tests.contract.engines import listening, started
from tests.contract.fakes import vllm_tokens
from tests.contract.fakes.common import Backend
from tests.generation.multimodal.seeing_models import picture, save_seeing
from tests.media.pictures import encoded
from tests.server import Running, scripted, serving

TOKENS = 8
TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
BEFORE, BEHIND = "Look at ", " and say."


class Seen:
    """The folder, what is sent, and what is to come back."""

    def __init__(self, folder: Any) -> None:
        from PIL import Image

        save_seeing("qwen3-vl", folder)
        spoken = load_model_files(folder).tokenizer.get_vocab_size()
        rows = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
        # Random weights would say ids that are no token, which an upstream must not.
        (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": list(range(spoken, rows))}))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        self.folder = str(folder)
        shown = picture(3)
        image = Image.frombytes("RGB", (shown.width, shown.height), shown.pixels)
        self.data = base64.b64encode(encoded(image)).decode()
        self.url = f"data:image/png;base64,{self.data}"
        self.ids, self.text, self.prompt_tokens = self.generated(BEHIND)

    def generated(self, behind: str) -> tuple[list[int], str, int]:
        """By transformers alone: the tokens, their text and the length of the prompt."""
        tokenizer = load_model_files(self.folder).tokenizer
        feature = tokenizer.token_to_id("<|image_pad|>")
        reader = load_picture_reader(self.folder, tokenizer, feature)
        prepared = reader.prepare(picture(3))
        asked = f"<|im_start|>user\n{BEFORE}<|vision_start|>{reader.decode(list(prepared.ids))}<|vision_end|>{behind}"
        row = torch.tensor([reader.encode(f"{asked}<|im_end|>\n<|im_start|>assistant\n")])
        with torch.inference_mode():
            out = AutoModelForImageTextToText.from_pretrained(self.folder).generate(
                input_ids=row,
                attention_mask=torch.ones_like(row),
                mm_token_type_ids=(row == reader.placeholder).int(),
                max_new_tokens=TOKENS,
                do_sample=False,
                pad_token_id=0,
                **prepared.tensors,
            )
        ids: list[int] = out[0, row.shape[1] :].tolist()
        return ids, tokenizer.decode(ids, skip_special_tokens=False), row.shape[1]

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(EngineConfig(model=self.folder, threads=1, flatten=False), process=False)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    made = Seen(tmp_path_factory.mktemp("seen"))
    assert len(set(made.ids)) > 2 and len(made.text) > 2
    return made


@pytest.fixture
async def running(seen: Seen):
    async with serving(seen.engine(), model=seen.folder, demo=False) as server:
        yield server


def parts(seen: Seen) -> list[dict[str, Any]]:
    """As AG-UI's clients send them."""
    image = {"type": "image", "source": {"type": "data", "value": seen.data, "mimeType": "image/png"}}
    return [{"type": "text", "text": BEFORE}, image, {"type": "text", "text": BEHIND}]


async def test_the_openai_sdk(running, seen: Seen):
    image = {"type": "image_url", "image_url": {"url": seen.url, "detail": "high"}}
    content: Any = [{"type": "text", "text": BEFORE}, image, {"type": "text", "text": BEHIND}]
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        models = (await client.models.list()).data
        said = await client.chat.completions.create(
            model=models[0].id,
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=TOKENS,
            extra_body={"return_token_ids": True},
        )
        response = await client.responses.create(
            model=models[0].id,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": BEFORE},
                        {"type": "input_image", "image_url": seen.url, "detail": "auto"},
                        {"type": "input_text", "text": BEHIND},
                    ],
                }
            ],
            temperature=0,
            max_output_tokens=TOKENS,
        )
    assert models[0].model_extra["architecture"]["input_modalities"] == ["text", "file", "image"]
    assert said.choices[0].model_extra["token_ids"] == seen.ids
    assert said.choices[0].message.content == seen.text
    assert said.usage.prompt_tokens == seen.prompt_tokens
    assert response.output_text == seen.text


async def test_the_anthropic_sdk(running, seen: Seen):
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": seen.data}}
    content: Any = [{"type": "text", "text": BEFORE}, image, {"type": "text", "text": BEHIND}]
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="-") as client:
        said = await client.messages.create(
            model="default",
            max_tokens=TOKENS,
            messages=[{"role": "user", "content": content}],
            extra_body={"temperature": 0},
        )
    assert "".join(block.text for block in said.content if block.type == "text") == seen.text
    assert said.usage.input_tokens == seen.prompt_tokens


@pytest.mark.parametrize("client", ["1.0.0", "0.0.59"])
async def test_the_ag_ui_clients(running, seen: Seen, node_clients: NodeClients, client: str):
    entry = {
        "url": f"{running.url}/agui", "client": client, "turns": [parts(seen)],
        "forwardedProps": {"temperature": 0, "max_tokens": TOKENS},
    }  # fmt: skip
    [report] = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
    assert report["problems"] == []
    assert report["messages"][-1]["content"] == seen.text


@pytest.mark.parametrize("transport", ["rest", "single"])
async def test_copilotkits_core(running, seen: Seen, node_clients: NodeClients, transport: str):
    """Its chat puts what was attached behind the text."""
    entry = {
        "runtimeUrl": f"{running.url}/copilotkit", "transport": transport, "text": BEFORE,
        "files": [{"name": "seen.png", "type": "image/png", "data": seen.data}],
        "properties": {"temperature": 0, "max_tokens": TOKENS},
    }  # fmt: skip
    [report] = await asyncio.to_thread(node_clients.run, "copilotkit_upload.mjs", [entry])
    assert report["problems"] == []
    assert report["content"] == seen.generated("")[1]


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_ai_sdk(running, seen: Seen, node_clients: NodeClients, wire: str, stream: bool):
    shown = {"type": "image", "image": seen.data, "mediaType": "image/png"}
    content = [{"type": "text", "text": BEFORE}, shown, {"type": "text", "text": BEHIND}]
    entry = {
        "baseURL": f"{running.url}/v1", "wire": wire, "stream": stream, "maxOutputTokens": TOKENS,
        "messages": [{"role": "user", "content": content}],
    }  # fmt: skip
    [answer] = await asyncio.to_thread(node_clients.run, "ai_sdk.mjs", [entry])
    assert "error" not in answer, answer
    assert (answer["text"], answer["inputTokens"]) == (seen.text, seen.prompt_tokens)


@pytest.mark.parametrize("form", ["parts", "binary"])
async def test_what_copilotkit_uploads(running, seen: Seen, form: str):
    """Its client of today sends parts, the one before it `binary` ones."""
    content = parts(seen)
    if form == "binary":
        content[1] = {"type": "binary", "mimeType": "image/png", "data": seen.data, "filename": "seen.png"}
    body = {
        "threadId": f"t-{form}", "runId": "r1", "state": {}, "tools": [], "context": [],
        "messages": [{"id": "m1", "role": "user", "content": content}],
        "forwardedProps": {"temperature": 0, "max_tokens": TOKENS},
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/copilotkit/agent/default/run", json=body)
        info = (await client.get("/copilotkit/info")).json()
        capabilities = (await client.get("/agui/capabilities")).json()
    events = [
        event for frame in sse.parse([answer.content]) for event in [httpx.Response(200, text=frame["data"]).json()]
    ]
    assert "".join(e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT") == seen.text
    assert capabilities["multimodal"]["input"]["image"] is True
    assert info["agents"]["default"]["capabilities"]["multimodal"]["input"]["image"] is True


@pytest.fixture
async def far(seen: Seen):
    """The same model behind vLLM's token-in token-out endpoint, and what that was sent; `far(False)`: an older vLLM."""

    @contextlib.asynccontextmanager
    async def made(sees: bool = True) -> AsyncIterator[tuple[Running, Backend]]:
        backend = Backend(seen.engine())
        async with started(backend.engine), listening(vllm_tokens.app(backend, sees=sees, context=512)) as url:
            upstream = UpstreamEngine(
                parse_address(f"vllm-tokens+{url}"),
                lambda: load_model(seen.folder, "demo"),
                UpstreamSettings(check_tokenizer=False),
            )
            async with serving(upstream, model=seen.folder, demo=False) as server:
                yield server, backend

    return made


async def test_a_picture_goes_on_to_an_upstream_that_takes_it(running, far, seen: Seen):
    """With the tokens that the engine here has for the same request, which is `generate`'s elsewhere."""
    image = {"type": "image_url", "image_url": {"url": seen.url}}
    content: Any = [{"type": "text", "text": BEFORE}, image, {"type": "text", "text": BEHIND}]
    ask: Any = {"model": "default", "temperature": 0, "max_tokens": TOKENS}
    ask |= {"extra_body": {"return_token_ids": True}}
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        here = await client.chat.completions.create(messages=[{"role": "user", "content": content}], **ask)
    async with (
        far() as (gateway, backend),
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="-") as client,
    ):
        said = await client.chat.completions.create(messages=[{"role": "user", "content": content}], **ask)
        twice = [*content, {"type": "text", "text": "<|image_pad|>"}, image]
        await client.chat.completions.create(messages=[{"role": "user", "content": twice}], **ask)
    assert said.choices[0].model_extra["token_ids"] == here.choices[0].model_extra["token_ids"]
    assert said.choices[0].message.content == here.choices[0].message.content
    assert said.usage.prompt_tokens == seen.prompt_tokens  # as the upstream counts, which alone knows
    placeholder = gateway.server.model.engine.info.placeholders["image"]
    one, two = (body for body in backend.bodies if body.get("content_parts"))
    assert one["token_ids"].count(placeholder) == 1 and len(one["token_ids"]) < seen.prompt_tokens
    # what a user spells is text: no third picture is looked for
    assert two["token_ids"].count(placeholder) == len(two["content_parts"]) == 2


async def test_an_upstream_that_takes_no_pictures_is_sent_none(far, seen: Seen):
    content = [{"type": "image_url", "image_url": {"url": seen.url}}]
    async with far(sees=False) as (running, _), httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
        models = (await client.get("/v1/models")).json()
    assert answer.status_code == 400 and "is image content; this model takes text" in answer.text
    assert models["data"][0]["architecture"]["input_modalities"] == ["text", "file"]


async def test_what_cannot_be_taken_is_a_400_that_names_it_and_says_what_can(running, seen: Seen):
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    video = {"type": "video", "source": {"type": "data", "value": "AAAA", "mimeType": "video/mp4"}}
    run = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    refused = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": [sound]}]},
        "/v1/responses": {"input": [{"role": "user", "content": [sound]}]},
        "/agui": {**run, "messages": [{"id": "m", "role": "user", "content": [video]}]},
        "/copilotkit/agent/default/run": {**run, "messages": [{"id": "m", "role": "user", "content": [video]}]},
    }
    async with httpx.AsyncClient(base_url=running.url) as client:
        for path, body in refused.items():
            answer = await client.post(path, json={"model": "default", **body})
            assert answer.status_code == 400, (path, answer.text)
            assert "this model takes text and image and document" in answer.text, path
            assert ".content.0" in answer.text, path


async def test_prompts_with_pictures_are_not_counted_wrongly(running, seen: Seen):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": seen.data}}
    wanted = {
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": [image]}]},
        "/v1/responses/input_tokens": {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": seen.url}]}]
        },
        "/tokenize": {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": seen.url}}]}]
        },
    }
    async with httpx.AsyncClient(base_url=running.url) as client:
        for path, body in wanted.items():
            answer = await client.post(path, json={"model": "default", **body})
            assert answer.status_code == 400, (path, answer.text)
            assert "image content" in answer.text, path


async def test_the_ag_ui_websocket(running, seen: Seen):
    body = {
        "threadId": "t-ws", "runId": "r1", "state": {}, "tools": [], "context": [],
        "messages": [{"id": "m1", "role": "user", "content": parts(seen)}],
        "forwardedProps": {"temperature": 0, "max_tokens": TOKENS},
    }  # fmt: skip
    video = {"type": "video", "source": {"type": "data", "value": "AAAA", "mimeType": "video/mp4"}}
    refused = {**body, "messages": [{"id": "m1", "role": "user", "content": [video]}]}
    said, kinds = "", []
    async with websockets.connect(f"{running.url.replace('http', 'ws')}/agui/ws") as socket:
        await socket.send(json.dumps({"type": "run", "input": refused}))
        assert "this model takes text and image and document" in await socket.recv()
        await socket.send(json.dumps({"type": "run", "input": body}))
        while "RUN_FINISHED" not in kinds:
            message = json.loads(await socket.recv())
            event = message.get("event", message)
            kinds.append(event["type"])
            said += event["delta"] if event["type"] == "TEXT_MESSAGE_CONTENT" else ""
    assert said == seen.text


BROKEN = {
    "no base64": ("data:image/png;base64,!!", "is not base64"),
    "no picture": ("data:image/png;base64,AAAA", "is not a PNG, JPEG, WebP or GIF"),
    "an address": ("https://pictures.example/a.png", "fetches nothing from URLs"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_picture_that_cannot_be_used_is_a_400(running, name: str, stream: bool):
    url, sentence = BROKEN[name]
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "default", "stream": stream, "messages": [{"role": "user", "content": content}]}
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert "Picture 1 of 1 is refused: " in answer.text and sentence in answer.text


async def test_a_model_of_text_alone_refuses_pictures_on_every_wire(seen: Seen):
    run = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    body = {**run, "messages": [{"id": "m", "role": "user", "content": parts(seen)}]}
    content = [{"type": "image_url", "image_url": {"url": seen.url}}]
    async with serving(scripted("hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        ag_ui = await client.post("/agui", json=body)
        chat = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
        capabilities = (await client.get("/agui/capabilities")).json()
        models = (await client.get("/v1/models")).json()
    for answer, place in ((ag_ui, "messages.0.content.1"), (chat, "messages.0.content.0")):
        assert answer.status_code == 400
        assert f"{place} is image content; this model takes text and document" in answer.text
    assert capabilities["multimodal"]["input"]["image"] is False
    assert models["data"][0]["architecture"]["input_modalities"] == ["text", "file"]


async def test_two_pictures_and_what_was_said_before(running, seen: Seen):
    """A conversation's pictures stay in their messages; the second turn finds the first one's in the cache."""
    image = {"type": "image_url", "image_url": {"url": seen.url}}
    first = {"role": "user", "content": [{"type": "text", "text": BEFORE * 8}, image]}
    ask = {"model": "default", "temperature": 0, "max_tokens": TOKENS}
    async with httpx.AsyncClient(base_url=running.url) as client:
        one = (await client.post("/v1/chat/completions", json={**ask, "messages": [first]})).json()
        history = [
            first,
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [image, {"type": "text", "text": "Again?"}]},
        ]
        two = (await client.post("/v1/chat/completions", json={**ask, "messages": history})).json()
    assert two["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"] + 10
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] > one["usage"]["prompt_tokens"] - 20
