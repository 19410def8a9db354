"""Open Responses' compliance tests against this server: its seven requests, and its schemas for what comes back.

    pip download --no-deps openresponses-py
    python -m tests.peers.open_responses openresponses_py-*.whl

The schemas are pydantic models that the package has generated from the specification. The bundled model answers.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any, get_args

import httpx
from pydantic import BaseModel, ValidationError

from tests.server import serving

PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
ENDS = ("response.completed", "response.incomplete", "response.failed")
CALL_EVENTS = ("response.function_call_arguments.delta", "response.function_call_arguments.done")


def said(role: str, content: object) -> dict[str, object]:
    return {"type": "message", "role": role, "content": content}


WEATHER_ASKED = {"input": [said("user", "What's the weather like in San Francisco?")], "tools": [WEATHER]}
LOOK = [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": PICTURE}]
REQUESTS: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [said("user", "Say hello in exactly 3 words.")]},
    "streaming-response": {"input": [said("user", "Count from 1 to 5.")], "stream": True},
    "system-prompt": {"input": [said("system", "You are a pirate."), said("user", "Say hello.")]},
    "tool-calling": WEATHER_ASKED,
    "tool-calling-streaming": {**WEATHER_ASKED, "stream": True},
    "image-input": {"input": [said("user", LOOK)]},
    "multi-turn": {
        "input": [
            said("user", "My name is Alice."),
            said("assistant", "Hello Alice!"),
            said("user", "What is my name?"),
        ]
    },
}


def load_schemas(wheel: Path, folder: Path) -> Any:
    """The package's schemas, without the rest of it and what that imports."""
    zipfile.ZipFile(wheel).extractall(folder)
    for name, path in {"openresponses": "openresponses", "openresponses.types": "openresponses/types"}.items():
        package = types.ModuleType(name)
        package.__path__ = [str(folder / path)]
        sys.modules[name] = package
    return importlib.import_module("openresponses.types.generated")


def faults(model: type[BaseModel], value: object, at: str = "") -> list[str]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        return [f"{at}{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


def judged(name: str, answer: httpx.Response, schemas: Any) -> list[str]:
    """What is wrong with an answer."""
    if answer.status_code != 200:
        return [f"HTTP {answer.status_code}: {answer.text[:200]}"]
    found: list[str] = []
    if REQUESTS[name].get("stream"):
        models = [getattr(schemas, each) for each in dir(schemas) if each.endswith("StreamingEvent")]
        by_type = {get_args(model.model_fields["type"].annotation)[0]: model for model in models}
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        for event in events:
            model = by_type.get(event["type"])
            found += [f"{event['type']} is unknown"] if model is None else faults(model, event, f"{event['type']} ")
        if "tool" in name:
            kinds = {event["type"] for event in events}
            found += [f"{kind} is missing" for kind in CALL_EVENTS if kind not in kinds]
        response = next(event["response"] for event in events if event["type"] in ENDS)
    else:
        response = answer.json()
    found += faults(schemas.ResponseResource, response)
    kinds = [item["type"] for item in response["output"]]
    if response["status"] != "completed" or not kinds:
        found.append(f"status {response['status']}, output {kinds}")
    if "tool" in name and "function_call" not in kinds:
        found.append("no function_call")
    return sorted(set(found))


async def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schemas = load_schemas(wheel, Path(folder))
        async with serving(local=True) as running, httpx.AsyncClient(base_url=running.url, timeout=120) as client:
            for name, body in REQUESTS.items():
                answer = await client.post("/v1/responses", json={"model": "default", **body})
                wrong = judged(name, answer, schemas)
                print(f"{name}: {'passed' if not wrong else '; '.join(wrong)}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
