"""An AG2 agent as a guest, through AG2's own AG-UI stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
from ag2 import Agent
from ag2.ag_ui import AGUIStream
from ag_ui.core import ReasoningMessage, ResumeEntry

from agent_server.agents.guests.guest import GuestInput
from agent_server.agents.guests.host import PausedRuns
from agent_server.agents.guests.in_process import BASE_URL, InProcess

DATA = "data: "


class Ag2Guest:
    """Serves one agent. Every run gets the whole conversation. A run that asks a person waits in this process for the
    answer. An agent without a model configuration uses this server's model."""

    kind = "ag2"
    errors_for_clients = False
    partial_snapshots = False

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent
        self._paused: PausedRuns[AGUIStream] = PausedRuns(AGUIStream.aclose)

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        # A new stream for each run, since closing a stream is what stops its work; the waiting one for an answer.
        if input.resume:
            stream = self._paused.resume(input.thread_id)
        else:
            await self._paused.drop(input.thread_id)
            stream = AGUIStream(self._agent)
        # Without reasoning, and with answers that AG2 accepts: its questions only take strings.
        plain = input.plain()
        messages = [each for each in plain.messages if not isinstance(each, ReasoningMessage)]
        resume: list[ResumeEntry] = []
        for entry in plain.resume or ():
            payload = entry.payload
            if isinstance(payload, bool):
                payload = "y" if payload else "n"
            resume.append(entry.model_copy(update={"payload": payload}))
        plain = plain.model_copy(update={"messages": messages, "resume": resume or None})
        config: Any = None
        if self._agent.config is None:  # the run's model, through a client within this process
            from ag2.config import OpenAIConfig

            http = httpx2.AsyncClient(transport=InProcess())
            config = OpenAIConfig(
                "default", api_key="none", base_url=BASE_URL, http_client=http, max_retries=0, streaming=True
            )
        interrupted = False
        try:
            async with contextlib.aclosing(stream.dispatch(plain, config=config)) as frames:  # type: ignore[type-var, unused-ignore]
                async for frame in frames:
                    event = msgspec.json.decode(frame.removeprefix(DATA))
                    interrupted = (event.get("outcome") or {}).get("type") == "interrupt"
                    yield event
        finally:
            if interrupted and input.stored:
                await self._paused.add(input.thread_id, stream)
            else:
                await stream.aclose()

    async def close(self) -> None:
        await self._paused.close()
