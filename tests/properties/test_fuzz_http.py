"""Malformed requests against a running server: never a 5xx, never a hang, answers small and in the wire's own shape."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from adapters.errors import Wire
from tests.properties.test_fuzz_wires import ANSWER_LIMIT, BODIES, changed, spoilt, written
from tests.server import scripted, serving

PATHS: dict[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/completions": "completions",
    "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic count",
    "/v1/generate": "generate",
    "/tokenize": "tokenize",
    "/agui": "agui",
}
SAMPLE = 40


def is_error_of(wire: Wire, body: Any) -> bool:
    match wire:
        case "openai":
            return set(body["error"]) == {"message", "type", "param", "code"}
        case "anthropic":
            return body["type"] == "error" and set(body["error"]) == {"type", "message"}
    return {"code", "message", "retryable"} <= set(body["error"])


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_malformed_bodies(path: str) -> None:
    wire, _, valid = BODIES[PATHS[path]]
    valid = {**valid, "model": "default"} if "model" in valid else valid
    rng = random.Random(path)
    refused = 0
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url, timeout=10) as client:
        for _ in range(SAMPLE):
            answer = await client.post(path, content=spoilt(written(changed(valid, rng)), rng))
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
            if answer.status_code != 200:
                refused += 1
                assert len(answer.content) < ANSWER_LIMIT
                assert is_error_of(wire, answer.json()), answer.text
        assert not running.engine.running
    assert refused > SAMPLE / 4


async def test_wrong_methods_and_paths_have_the_wires_shape() -> None:
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for path, name in PATHS.items():
            answer = await client.get(path)
            assert answer.status_code == 405
            assert is_error_of(BODIES[name][0], answer.json())
        for path in ("/v1/responses/none", "/v1/responses/none/input_items", "/v1/models/none"):
            assert is_error_of("openai", (await client.get(path)).json())
        for path in ("/v1/responses/none/cancel", "/v1/responses/none"):
            answer = await client.request("POST" if path.endswith("cancel") else "DELETE", path)
            assert answer.status_code == 404
