"""What texts may cost that are only counted: their length is looked at before they are encoded."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from agent_server.models.prompting import encoding
from agent_server.models.prompting.encoding import COUNTED_CHARACTERS
from events.template.environment import ChatTemplate
from tests.server import Running, scripted, serving


@pytest.fixture
async def running():
    async with serving(scripted("Hi")) as made:
        yield made


def context(running: Running) -> int:
    assert running.server.model.prompts is not None
    length = running.server.model.prompts.context_length
    assert length is not None
    return length


def asked(text: str, path: str) -> dict[str, object]:
    message = {"role": "user", "content": text}
    if path == "/tokenize":
        return {"prompt": text}
    return {"model": "default", "messages": [message], "max_tokens": 1}


@pytest.mark.parametrize(
    "text", ["hello world ", "<|im_end|>", "\u6771\u4eac", " "], ids=["words", "marks", "wide", "spaces"]
)
@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_a_text_many_times_as_long_as_the_context_is_refused_before_it_is_encoded(
    running: Running, path: str, text: str, monkeypatch: pytest.MonkeyPatch
):
    def encoded(tokenizer: object, text: str, **_: object) -> object:
        raise AssertionError(f"{len(text)} characters are encoded")

    monkeypatch.setattr("agent_server.models.prompting.prompt.encoded", encoded)
    monkeypatch.setattr("agent_server.models.prompting.control_tokens.encoded", encoded)
    long = (text * (context(running) * COUNTED_CHARACTERS // len(text) + 1))[
        : 3_500_000 // len(text.encode()) * len(text)
    ]
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        refused = await client.post(path, json=asked(long, path))
    assert refused.status_code == 400
    assert "characters" in refused.text and ("context" in refused.text)


async def test_a_text_that_is_longer_than_the_context_is_counted_in_slices(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []
    prompts = running.server.model.prompts
    assert prompts is not None

    class Watched:
        """The tokenizer of the server, and the lengths of what it encodes."""

        def __init__(self, tokenizer: object) -> None:
            self._tokenizer = tokenizer

        def encode_batch(self, texts: list[str], **options: object) -> object:
            sizes.extend(map(len, texts))
            return self._tokenizer.encode_batch(texts, **options)  # type: ignore[attr-defined]

        def __getattr__(self, name: str) -> object:
            return getattr(self._tokenizer, name)

    monkeypatch.setattr(prompts, "tokenizer", Watched(prompts.tokenizer))
    monkeypatch.setattr(encoding, "LONG", 4096)
    monkeypatch.setattr(encoding, "SLICE", 4096)
    text = "hello <|im_end|> world " * 4000
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        counted = (await client.post("/tokenize", json={"prompt": text})).json()
        chat = await client.post("/v1/chat/completions", json=asked(text, ""))
    assert counted["count"] > context(running) and max(sizes) <= 4096
    assert chat.status_code == 400 and "context" in chat.text


async def test_a_prompt_is_not_encoded_further_than_its_context(running: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "LONG", 4096)
    monkeypatch.setattr(encoding, "SLICE", 4096)
    slices = []
    check = encoding._check_most
    monkeypatch.setattr(encoding, "_check_most", lambda ids, most: (slices.append(len(ids)), check(ids, most)))
    long = "a b c d " * 7000
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        refused = await client.post("/v1/chat/completions", json=asked(long, ""))
        raw = await client.post("/v1/completions", json={"model": "default", "prompt": long, "max_tokens": 1})
    assert refused.status_code == raw.status_code == 400
    assert 0 < max(slices, default=0) < 2 * context(running)


CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
RENDERING = {
    "/tokenize": CHAT,
    "/apply-template": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/chat/completions/render": CHAT,
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses/input_tokens": {"model": "default", "input": "Hi"},
}


async def test_a_template_that_never_ends_leaves_other_requests_alone(monkeypatch: pytest.MonkeyPatch):
    """Each route that renders a prompt says so in time, and large bodies are still read."""
    may_end, usual = threading.Event(), ChatTemplate.render_prompt
    async with (
        serving(scripted("Hi"), render_time_limit=0.3) as running,
        httpx.AsyncClient(base_url=running.url, timeout=20) as client,
    ):
        monkeypatch.setattr(ChatTemplate, "render_prompt", lambda *a, **k: (may_end.wait(30), usual(*a, **k))[1])
        try:
            asked = [client.post(path, json=body) for path, body in RENDERING.items() for _ in range(2)]
            answers = await asyncio.gather(*asked)
            assert {answer.status_code for answer in answers} == {503, 504, 529}, [answer.text for answer in answers]
            counted = await client.post("/tokenize", json={"prompt": "hello world " * 8000})
            assert counted.status_code == 200 and counted.json()["count"] > 8000
        finally:
            may_end.set()
