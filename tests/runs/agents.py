"""Run managers whose agents are plain functions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from ag_ui.core import RunAgentInput

from agent_server.runs import Ending, Recorder, RunContext, RunManager
from agent_server.runs.sharing import AnyRun
from agent_server.settings import RunLimits
from events.options import GenerationOptions
from events.vocabulary import Event, TextMessageContent, TextMessageEnd, TextMessageStart

Body = Callable[[Recorder], Awaitable[Ending]]


class Plain:
    def __init__(self, body: Body) -> None:
        self.name = "default"
        self.body = body

    async def run(self, context: RunContext) -> Ending:
        return await self.body(context.recorder)

    async def close(self) -> None:
        pass


def manager_of(body: Body, **limits: object) -> RunManager:
    count = itertools.count(1)
    return RunManager(
        {"default": Plain(body)}, limits=RunLimits(**limits), new_id=lambda prefix: f"{prefix}-{next(count)}"
    )


def ask(run_id: str = "r1", thread_id: str = "t1") -> RunAgentInput:
    return RunAgentInput(thread_id=thread_id, run_id=run_id, messages=[])


OPTIONS = GenerationOptions(store=False)


async def read_all(run: AnyRun, after: int = 0) -> list[tuple[int, Event]]:
    """A run's numbered events from the one after `after` to its end."""
    return [item async for item in run.events(after)]


async def say(recorder: Recorder, count: int = 3) -> Ending:
    recorder.emit(TextMessageStart(message_id="m"))
    for index in range(count):
        await asyncio.sleep(0)
        recorder.emit(TextMessageContent(message_id="m", delta=str(index)))
    recorder.emit(TextMessageEnd(message_id="m"))
    return Ending()


async def forever(recorder: Recorder) -> Ending:
    recorder.emit(TextMessageStart(message_id="m"))
    await asyncio.Event().wait()
    return Ending()
