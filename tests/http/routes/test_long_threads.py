"""A conversation that outgrows the model, over the wires that keep it."""

from __future__ import annotations

from typing import Any

import httpx

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from tests.agents.guests.talking import body, events_of, user
from tests.server import scripted, serving

LONG = "word " * 100


async def test_agui_and_copilotkit_go_on_past_the_models_context_and_show_why() -> None:
    prompts: list[int] = []

    def script(request: GenerationRequest) -> Script:
        prompts.append(len(request.prompt_token_ids))
        return Script(text="Yes.")

    async with serving(scripted(script, context_length=700), compaction="summarise") as running:
        for number in range(6):
            path = "/agui" if number % 2 else "/copilotkit/agent/default/run"
            request = body(user(f"{number} {LONG}", f"u{number}"), run=f"r{number}")
            frames: list[dict[str, Any]] = await events_of(running.url, request, path)
            assert frames[-1]["type"] == "RUN_FINISHED", frames[-1]
        async with httpx.AsyncClient(base_url=running.url) as client:
            held = (await client.get("/agui/threads/t1/messages")).json()["messages"]
            refused = await client.post(
                "/v1/chat/completions",
                json={"model": "default", "messages": [{"role": "user", "content": LONG * 8}]},
            )
    activities = [each for each in held if each["role"] == "activity"]
    assert activities and activities[0]["content"]["summary"] == "Yes." and max(prompts) < 700
    assert [each["id"] for each in held if each["role"] == "user"] == [f"u{number}" for number in range(6)]
    assert refused.status_code == 400 and "context" in refused.json()["error"]["message"]
