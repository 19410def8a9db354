"""Runs of served guests over AG-UI, each stream held to the lifecycle."""

from __future__ import annotations

import json
from typing import Any

import httpx

from adapters import sse
from events.lifecycle import Verifier
from events.receive import receive
from events.vocabulary import RunError, RunFinished

PAINT = {"name": "paint", "description": "", "parameters": {"type": "object", "properties": {}}}
"""A tool of the client's."""


def body(*messages: dict[str, Any], thread: str = "t1", run: str = "r1", **more: Any) -> dict[str, Any]:
    return {
        "threadId": thread, "runId": run, "protocolVersion": "1.0", "state": {}, "tools": [], "context": [],
        "messages": list(messages), "forwardedProps": {}, **more,
    }  # fmt: skip


def user(text: str, id: str = "u1") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text}


async def events_of(url: str, request: dict[str, Any], path: str = "/agui", **headers: str) -> list[dict[str, Any]]:
    """The run's events as JSON objects."""
    async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as client:
        response = await client.post(path, json=request)
    assert response.status_code == 200, response.text
    frames = [json.loads(frame["data"]) for frame in sse.parse([response.content])]
    verified(frames)
    return frames


def verified(frames: list[dict[str, Any]]) -> None:
    verifier, last = Verifier(strict=True), None
    for frame in frames:
        event, warnings = receive(frame)
        assert event is not None and not warnings, (frame, warnings)
        verifier.check(event)
        last = event
    assert isinstance(last, RunFinished | RunError)


def told(frames: list[dict[str, Any]]) -> list[Any]:
    """The events in short: text, calls, results and the outcome."""
    short: list[Any] = []
    for frame in frames:
        match frame:
            case {
                "type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" | "TOOL_CALL_ARGS" as kind,
                "delta": delta,
            }:
                name = {"TEXT_MESSAGE_CONTENT": "text", "REASONING_MESSAGE_CONTENT": "reasoning"}.get(kind, "args")
                if short and short[-1][0] == name:
                    delta = short.pop()[1] + delta
                short.append((name, delta))
            case {"type": "TOOL_CALL_START"}:
                short.append(("call", frame["toolCallName"]))
            case {"type": "TOOL_CALL_RESULT"}:
                short.append(("result", frame["content"]))
            case {"type": "STATE_SNAPSHOT"}:
                short.append(("state", frame["snapshot"]))
            case {"type": "RUN_FINISHED"}:
                short.append(("finished", frame.get("outcome", {}).get("type")))
            case {"type": "RUN_ERROR"}:
                short.append(("error", frame["message"]))
    return short
