"""CopilotKit's feed for developers: every event of its runs, at /copilotkit/cpk-debug-events.

Its inspectors read it (`@copilotkit/runtime` 1.74, core/debug-event-bus: a comment, then envelopes as SSE). It carries
whole conversations, so it is there only where the operator has said so, and a reader gets those of its tenant alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from adapters import sse
from agent_server.http.routes.http import Encoder
from events.encode import encode
from events.vocabulary import Event, RunStarted

WAITING = 4096
"""Events that wait for a reader; one that is slower than that is let go, and may come again."""
LOOK_SECONDS = 1.0
"""Between two looks of a silent reader for whether the server ends."""
READERS = 16
"""At once; the oldest makes room."""


class DebugEvents:
    """The feed. What nobody reads is not kept. closing: whether the server ends; readers go then."""

    def __init__(self, closing: Callable[[], bool]) -> None:
        self._closing = closing
        self._readers: list[tuple[str, asyncio.Queue[bytes | None]]] = []

    def heard(self, encoder: Encoder, tenant: str, agent: str) -> Encoder:
        """An encoder that tells the feed what it is given."""
        return HeardEncoder(encoder, self, tenant, agent)

    def tell(self, tenant: str, event: Event, agent: str, thread: str, run: str) -> None:
        queues = [queue for whose, queue in self._readers if whose == tenant]
        if not queues:
            return
        envelope = {"timestamp": time.time_ns() // 1_000_000, "agentId": agent, "threadId": thread, "runId": run}
        frame = sse.frame(msgspec.json.encode({**envelope, "event": msgspec.Raw(encode(event))}))
        for queue in queues:
            if queue.qsize() < WAITING:
                queue.put_nowait(frame)
            else:
                self._let_go(queue)

    async def frames(self, tenant: str) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        if len(self._readers) >= READERS:
            self._let_go(self._readers[0][1])
        self._readers.append((tenant, queue))
        try:
            yield b": connected\n\n"
            while not self._closing():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        frame = await queue.get()
                    if frame is None:
                        return
                    yield frame
        finally:
            self._readers = [each for each in self._readers if each[1] is not queue]

    def _let_go(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._readers = [each for each in self._readers if each[1] is not queue]
        queue.put_nowait(None)


class HeardEncoder:
    """Encodes as the one it stands before, and tells the feed each event under its run's ids."""

    def __init__(self, encoder: Encoder, feed: DebugEvents, tenant: str, agent: str) -> None:
        self._encoder = encoder
        self._feed = feed
        self._tenant = tenant
        self._agent = agent
        self._thread = self._run = ""

    @property
    def content_type(self) -> str:
        return self._encoder.content_type

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if isinstance(event, RunStarted):
            self._thread, self._run = event.thread_id, event.run_id
        self._feed.tell(self._tenant, event, self._agent, self._thread, self._run)
        return self._encoder.encode(event, sequence=sequence, choice=choice)

    def finish(self) -> bytes:
        return self._encoder.finish()

    def keep_alive(self) -> bytes:
        return self._encoder.keep_alive()
