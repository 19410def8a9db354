"""Each client sends a sound to a tiny model that hears, and gets the tokens of transformers' `generate`."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import av
import httpx
import numpy
import openai
import pytest
import torch
import websockets
from transformers import AutoModelForMultimodalLM

from adapters import sse
from agent_server.engines.embedded import EmbeddedEngine
from agent_server.generation.multimodal.sound_reader import load_sound_reader
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files import load_model_files
from tests.conformance.node import NodeClients
from tests.generation.multimodal.hearing_models import RATE, WINDOW, save_hearing_chat, sound, wav
from tests.server import scripted, serving

TOKENS = 8
BEFORE, BEHIND = "Listen to ", " and say."
RUN: dict[str, Any] = {"threadId": "t", "runId": "r", "tools": [], "context": [], "state": {}}
ASK = {"temperature": 0, "max_tokens": TOKENS}


class Heard:
    """The folder, what is sent, and what is to come back."""

    def __init__(self, folder: Any) -> None:
        save_hearing_chat(folder)
        self.folder = str(folder)
        self.data = base64.b64encode(wav(sound(3).samples)).decode()
        self.ids, self.text, self.prompt_tokens = self.generated(BEHIND)

    def generated(self, behind: str) -> tuple[list[int], str, int]:
        """By transformers alone: the tokens, their text and the length of the prompt."""
        tokenizer = load_model_files(self.folder).tokenizer
        reader = load_sound_reader(self.folder, tokenizer)
        prepared = reader.prepare(sound(3))
        asked = f"<|im_start|>user\n{BEFORE}<|audio_bos|>{reader.decode(list(prepared.ids))}<|audio_eos|>{behind}"
        row = torch.tensor([reader.encode(f"{asked}<|im_end|>\n<|im_start|>assistant\n")])
        with torch.inference_mode():
            out = AutoModelForMultimodalLM.from_pretrained(self.folder).generate(
                input_ids=row,
                attention_mask=torch.ones_like(row),
                max_new_tokens=TOKENS,
                do_sample=False,
                pad_token_id=0,
                **prepared.tensors,
            )
        ids: list[int] = out[0, row.shape[1] :].tolist()
        return ids, tokenizer.decode(ids, skip_special_tokens=True), row.shape[1]

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(EngineConfig(model=self.folder, threads=1, flatten=False), process=False)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Heard:
    made = Heard(tmp_path_factory.mktemp("heard"))
    assert len(set(made.ids)) > 2 and len(made.text) > 2
    return made


@pytest.fixture
async def running(heard: Heard):
    async with serving(heard.engine(), model=heard.folder, demo=False) as server:
        yield server


def spoken(data: str, form: str = "wav") -> Any:
    """As OpenAI's SDK types it."""
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def asked(sound: Any, before: str = BEFORE, behind: str = BEHIND) -> Any:
    return [{"role": "user", "content": [{"type": "text", "text": before}, sound, {"type": "text", "text": behind}]}]


def parts(heard: Heard) -> list[dict[str, Any]]:
    """As AG-UI's clients send them."""
    audio = {"type": "audio", "source": {"type": "data", "value": heard.data, "mimeType": "audio/wav"}}
    return [{"type": "text", "text": BEFORE}, audio, {"type": "text", "text": BEHIND}]


async def test_the_openai_sdk(running, heard: Heard):
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        models = (await client.models.list()).data
        said = await client.chat.completions.create(
            model=models[0].id,
            messages=asked(spoken(heard.data)),
            temperature=0,
            max_tokens=TOKENS,
            extra_body={"return_token_ids": True},
        )
        content: Any = [
            {"type": "input_text", "text": BEFORE},
            spoken(heard.data),
            {"type": "input_text", "text": BEHIND},
        ]
        response = await client.responses.create(
            model=models[0].id,
            input=[{"role": "user", "content": content}],
            temperature=0,
            max_output_tokens=TOKENS,
        )
    assert models[0].model_extra["architecture"]["input_modalities"] == ["text", "audio", "file"]
    assert said.choices[0].model_extra["token_ids"] == heard.ids
    assert said.choices[0].message.content == heard.text
    assert said.usage.prompt_tokens == heard.prompt_tokens
    assert response.output_text == heard.text


@pytest.mark.parametrize("client", ["1.0.0", "0.0.59"])
async def test_the_ag_ui_clients(running, heard: Heard, node_clients: NodeClients, client: str):
    entry = {"url": f"{running.url}/agui", "client": client, "turns": [parts(heard)], "forwardedProps": ASK}
    [report] = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
    assert report["problems"] == []
    assert report["messages"][-1]["content"] == heard.text


async def test_copilotkits_core(running, heard: Heard, node_clients: NodeClients):
    """Its chat puts what was attached behind the text."""
    entry = {
        "runtimeUrl": f"{running.url}/copilotkit", "transport": "rest", "text": BEFORE,
        "files": [{"name": "heard.wav", "type": "audio/wav", "data": heard.data}], "properties": ASK,
    }  # fmt: skip
    [report] = await asyncio.to_thread(node_clients.run, "copilotkit_upload.mjs", [entry])
    assert report["problems"] == []
    assert report["content"] == heard.generated("")[1]


@pytest.mark.parametrize("form", ["parts", "binary", "a data URL"])
async def test_what_copilotkit_uploads(running, heard: Heard, form: str):
    content = parts(heard)
    if form == "binary":
        content[1] = {"type": "binary", "mimeType": "audio/wav", "data": heard.data, "filename": "heard.wav"}
    elif form == "a data URL":
        content[1]["source"] = {"type": "url", "value": f"data:audio/wav;base64,{heard.data}"}
    body = {**RUN, "messages": [{"id": "m1", "role": "user", "content": content}], "forwardedProps": ASK}
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/copilotkit/agent/default/run", json=body)
        info = (await client.get("/copilotkit/info")).json()
        capabilities = (await client.get("/agui/capabilities")).json()
    events = [json.loads(frame["data"]) for frame in sse.parse([answer.content])]
    assert "".join(e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT") == heard.text
    for found in (capabilities, info["agents"]["default"]["capabilities"]):
        assert found["multimodal"]["input"]["audio"] is True
        assert found["multimodal"]["input"]["image"] is False


async def test_the_ag_ui_websocket(running, heard: Heard):
    body = {**RUN, "messages": [{"id": "m1", "role": "user", "content": parts(heard)}], "forwardedProps": ASK}
    said, kinds = "", []
    async with websockets.connect(f"{running.url.replace('http', 'ws')}/agui/ws") as socket:
        await socket.send(json.dumps({"type": "run", "input": body}))
        while "RUN_FINISHED" not in kinds:
            message = json.loads(await socket.recv())
            event = message.get("event", message)
            kinds.append(event["type"])
            said += event["delta"] if event["type"] == "TEXT_MESSAGE_CONTENT" else ""
    assert said == heard.text


async def test_what_cannot_be_taken_is_a_400_that_says_what_can(running, heard: Heard):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": asked(image)})
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
        blocks = await client.post("/v1/messages", json=body)
        count = await client.post("/tokenize", json={"messages": asked(spoken(heard.data))})
    for refused in (answer, blocks):
        assert refused.status_code == 400
        assert "is image content; this model takes text and audio and document" in refused.text
    assert count.status_code == 400 and "audio content" in count.text  # the engine alone knows how many tokens


async def test_a_model_of_text_alone_refuses_sounds_on_every_wire(heard: Heard):
    body = {**RUN, "messages": [{"id": "m", "role": "user", "content": parts(heard)}], "forwardedProps": {}}
    async with serving(scripted("hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        ag_ui = await client.post("/agui", json=body)
        chat = await client.post("/v1/chat/completions", json={"messages": asked(spoken(heard.data))})
        responses = await client.post("/v1/responses", json={"input": asked(spoken(heard.data))})
        capabilities = (await client.get("/agui/capabilities")).json()
    for answer in (ag_ui, chat, responses):
        assert answer.status_code == 400
        assert ".content.1 is audio content; this model takes text and document" in answer.text
    assert capabilities["multimodal"]["input"]["audio"] is False


def silence(seconds: int) -> bytes:
    """In FLAC, which takes about a byte for each 100 samples."""
    held = io.BytesIO()
    with av.open(held, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=RATE, layout="mono")
        for _ in range(seconds):
            frame = av.AudioFrame.from_ndarray(numpy.zeros((1, RATE), numpy.int16), "s16", "mono")
            frame.sample_rate = RATE
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return held.getvalue()


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


HOSTILE = {
    "no base64": ("!!", "The data is not base64"),
    "nothing": ("", "The data is empty"),
    "no sound": (packed(b"<html>" * 50), "is no sound in WAV, MP3"),
    "a list of files": (packed(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"), "is no sound in WAV, MP3"),
    "a head alone": (packed(wav(b"")), "has no sound in it"),
    "cut off in its head": (packed(wav(b"")[:30]), "sound in"),
    "noise in place of a file": (packed(bytes(range(256)) * 100), "is no sound in WAV, MP3"),
    "longer than the model hears": (packed(wav(sound(1, WINDOW + 1).samples)), f"is longer than {WINDOW} seconds"),
    "an hour in a few bytes": (packed(silence(3600)), f"is longer than {WINDOW} seconds"),
    "one sample": (packed(wav(b"\1\0")), "cannot read a sound"),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_hostile_sounds_get_a_400_with_a_sentence(running, stream: bool):
    async with httpx.AsyncClient(base_url=running.url) as client:
        for name, (data, sentence) in HOSTILE.items():
            body = {"model": "default", "stream": stream, "messages": asked(spoken(data))}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400, (name, answer.text)
            assert sentence in answer.text, (name, answer.text)
        again = await client.post("/v1/chat/completions", json={"messages": asked("Still there?"), "max_tokens": 2})
    assert again.status_code == 200


async def test_sounds_come_from_urls_by_the_fetch_rules(running):
    audio = {"type": "audio", "source": {"type": "url", "value": "https://sounds.example/a.wav"}}
    body = {**RUN, "messages": [{"id": "m", "role": "user", "content": [audio]}], "forwardedProps": {}}
    url = {"type": "audio_url", "audio_url": {"url": "https://sounds.example/a.wav"}}
    async with httpx.AsyncClient(base_url=running.url) as client:
        ag_ui = await client.post("/agui", json=body)
        chat = await client.post("/v1/chat/completions", json={"messages": asked(url)})
    assert "Sound 1 of 1 is refused: This server fetches nothing from URLs" in ag_ui.text
    assert chat.status_code == 400 and "Sound 1 of 1 is refused: This server fetches nothing" in chat.text


async def test_another_turn_finds_the_sound_in_the_cache(running, heard: Heard):
    first = asked(spoken(heard.data), before=BEFORE * 8)
    more = [*first, {"role": "assistant", "content": "Yes."}, *asked(spoken(heard.data), before="")]
    async with httpx.AsyncClient(base_url=running.url) as client:
        one = (await client.post("/v1/chat/completions", json={**ASK, "messages": first})).json()
        two = (await client.post("/v1/chat/completions", json={**ASK, "messages": more})).json()
    assert two["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"] + 10
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] > one["usage"]["prompt_tokens"] - 20
