"""What a page of CopilotKit's is told that connects: the thread as it stands, and the runs that go on in it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from adapters import copilotkit
from adapters.copilotkit import History
from agent_server.http.routes.http import Encoder, RunFrames, each_of
from agent_server.ids import new_id
from events.vocabulary import Event

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun


class ThreadReplay:
    """Replays threads. Holds nothing but the store and the runs."""

    def __init__(self, server: Server) -> None:
        self._store = server.store
        self._runs = server.runs

    async def frames(self, thread_id: str, tenant: str, encoder: Encoder) -> AsyncGenerator[bytes, None]:
        """The thread as it stands, then the run that is going on, if one is. Nothing for an unknown thread."""
        running = await self._runs.going_on(thread_id, tenant)
        if running and running[0].log.whole:
            async with contextlib.aclosing(self._join(running, encoder)) as frames:
                async for frame in frames:
                    yield frame
            return
        history = await self.history(thread_id, tenant)
        if not history.run_id:
            return
        for event in [*copilotkit.replay_head(history), copilotkit.replay_end(history)]:
            yield encoder.encode(event)

    async def _join(self, runs: Sequence[AnyRun], encoder: Encoder) -> AsyncGenerator[bytes, None]:
        """The thread that the first run began from, with what waits behind it; then everything that the runs have said
        and will say, one after another. Those that wait count as read from the beginning: they would end else."""
        first, *waiting = runs
        read = [RunFrames(first, _WithoutStart(encoder)), *(RunFrames(run, encoder) for run in waiting)]
        async with contextlib.AsyncExitStack() as stack:
            frames = [await stack.enter_async_context(contextlib.aclosing(each_of(each))) for each in read]
            history = History(
                thread_id=first.thread_id, run_id=first.id, messages=await self._shown(runs), state=first.input.state
            )
            for event in copilotkit.replay_head(history):
                yield encoder.encode(event)
            for each in frames:
                async for frame in each:
                    yield frame

    async def _shown(self, runs: Sequence[AnyRun]) -> list[dict[str, object]]:
        """The thread's messages, with those of runs that are not stored (yet)."""
        found = await self._store.messages(runs[0].tenant, runs[0].thread_id)
        known = {message["id"] for message in found}
        for message in (message for run in runs for message in run.input.messages):
            if message.id not in known:
                known.add(message.id)
                found.append(message.model_dump(mode="json", by_alias=True, exclude_none=True))
        return found

    async def history(self, thread_id: str, tenant: str) -> History:
        """The thread as it stands; without a run id where there is none."""
        store = self._store
        runs, messages = await store.runs(tenant, thread_id), await store.messages(tenant, thread_id)
        if not runs and not messages:
            return History(thread_id=thread_id)
        asked = [each.interrupt for each in await store.interrupts(tenant, thread_id) if each.status == "open"]
        return History(
            thread_id=thread_id,
            run_id=runs[-1].id if runs else new_id("run"),  # a branch that nobody has written in yet
            messages=messages,
            state=await store.state(tenant, thread_id),
            interrupts=asked,
        )


class _WithoutStart:
    """An encoder for a run that the replay has already announced."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self.content_type = inner.content_type

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        return b"" if sequence == 1 else self._inner.encode(event, sequence=sequence, choice=choice)

    def finish(self) -> bytes:
        return self._inner.finish()

    def keep_alive(self) -> bytes:
        return self._inner.keep_alive()
