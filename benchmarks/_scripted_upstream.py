"""A server that speaks vLLM's completions and costs next to nothing: `python benchmarks/_scripted_upstream.py PORT`.

Its frames have the fields and about the length of vLLM 0.32's, and are ready before they are asked for. RATE in the
environment is its pace in tokens a second and stream; 0 is as fast as they are taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))
RATE = float(os.environ.get("RATE", "0"))
WORD = " word"
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


def tokenizer() -> Any:
    from agent_server.http.server import BUNDLED
    from agent_server.model_files import load_model_files

    return load_model_files(BUNDLED).tokenizer


def frame(token: int | None, text: str, reason: str | None) -> bytes:
    choice = {
        "index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None,
        "prompt_token_ids": None, "token_ids": [] if token is None else [token],
    }  # fmt: skip
    body = {
        "id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1_790_000_000,
        "model": "demo", "choices": [choice], "system_fingerprint": None,
    }  # fmt: skip
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


class Upstream:
    def __init__(self) -> None:
        self.tokenizer = tokenizer()
        (token,) = self.tokenizer.encode(WORD, add_special_tokens=False).ids[-1:]
        self.frame = frame(token, self.tokenizer.decode([token]), None)
        self.last = frame(token, self.tokenizer.decode([token]), "length")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = json.loads(body) if body else {}
        if scope["path"] == "/v1/completions" and asked.get("stream"):
            await self.stream(asked, send)
        else:
            await answer(send, self.known(scope["path"], asked))

    def known(self, path: str, asked: dict[str, Any]) -> Any:
        match path:
            case "/version":
                return {"version": "0.32.0"}
            case "/v1/models":
                return {"data": [{"id": "demo", "owned_by": "vllm", "parent": None, "max_model_len": 4096}]}
            case "/tokenize":
                return {"tokens": self.tokenizer.encode(asked["prompt"], add_special_tokens=False).ids}
            case "/v1/completions":
                return {"choices": [{"text": "", "finish_reason": "length"}]}
        return {}

    async def stream(self, asked: dict[str, Any], send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        count = asked["max_tokens"]
        due = asyncio.get_running_loop().time()
        for number in range(count):
            due += 1 / RATE if RATE else 0.0
            await asyncio.sleep(due - asyncio.get_running_loop().time() if RATE else 0)
            last = number == count - 1
            await send({"type": "http.response.body", "body": self.last if last else self.frame, "more_body": True})
        usage = {"choices": [], "usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}}
        tail = b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": tail, "more_body": False})


async def answer(send: Any, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(Upstream(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error", loop="uvloop", http="httptools")
