"""What every HTTP route shares: reading a body under a limit, error answers, and streaming a run.

The framework's own body parsing is not used: it reads without a limit and validates on the event loop without
stopping at the first error.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters import errors
from adapters.errors import RequestError, Wire
from agent_server.engine.protocol import EngineError

if TYPE_CHECKING:
    from agent_server.runs.sharing.protocol import AnyRun
    from events.vocabulary import Event

RETRY_AFTER = 1.0
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
SEND_BYTES = 32 * 1024
PLAIN = "!#$&'()*+,/:;=?@[]~"
"""Characters besides letters, digits and `_.-` that an id keeps in a header."""
WIRES: tuple[tuple[str, Wire], ...] = (
    ("/v1/messages", "anthropic"),
    ("/v1/generate", "generate"),
    ("/v1/", "openai"),
    ("/copilotkit", "copilotkit"),
    ("/generate", "websocket"),
    ("/tokenize", "openai"),
    ("/detokenize", "openai"),
)


class Encoder(Protocol):
    """The outbound half of a wire: events in, zero or more whole frames out."""

    @property
    def content_type(self) -> str: ...

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes: ...

    def finish(self) -> bytes: ...

    def keep_alive(self) -> bytes: ...


def wire_of(path: str) -> Wire:
    """Whose error shape an answer on this path has."""
    return next((wire for prefix, wire in WIRES if path.startswith(prefix)), "agui")


async def read_body(request: Request, limit: int) -> bytes:
    """The raw body; RequestError("payload_too_large") as soon as it is longer than `limit` bytes."""
    too_large = RequestError("payload_too_large", f"The body is larger than this server's limit of {limit} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def error_response(wire: Wire, error: RequestError, request_id: str | None = None) -> Response:
    answer = errors.response(wire, error, request_id=request_id)
    return Response(answer.body, status_code=answer.status, headers=answer.headers, media_type="application/json")


def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose RequestErrors and EngineErrors become answers in the shape of its wire."""

    async def handle(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestError as error:
            return error_response(wire_of(request.url.path), error)
        except EngineError as error:
            refused = RequestError(error.kind, error.message, error.param, RETRY_AFTER if error.retryable else None)
            return error_response(wire_of(request.url.path), refused)

    return handle


class EventStream(Response):
    """Streams frames, notices a client that left even while nothing is being sent, and keeps the line warm.

    Whatever ends the stream, the generator of frames is closed, which releases its reader of the run.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        content_type: str,
        keep_alive: Callable[[], bytes],
        interval: float,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status_code=200, headers={**STREAM_HEADERS, **(headers or {})}, media_type=None)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self.raw_headers.append((b"content-type", content_type.encode()))
        self._frames = frames
        self._keep_alive = keep_alive
        self._interval = interval
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last = asyncio.get_running_loop().time()
        sending = asyncio.create_task(self._send_all(send))
        warming = asyncio.create_task(self._keep_warm(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, warming, sending):
                await _stop(task)
            await self._frames.aclose()
        if self.background is not None:
            await self.background()

    async def _send_all(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        async for body in self._frames:
            self._last = now()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        self._last = math.inf
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_warm(self, send: Send) -> None:
        """A keep-alive whenever nothing was sent for the interval. It costs nothing where frames are frequent."""
        now = asyncio.get_running_loop().time
        while self._last < math.inf:
            rest = self._last + self._interval - now()
            if rest > 0:
                await asyncio.sleep(rest)
                continue
            self._last = now()
            await send({"type": "http.response.body", "body": self._keep_alive(), "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, OSError):
        await task


async def frames_of(run: AnyRun, encoder: Encoder, after: int = 0) -> AsyncGenerator[bytes, None]:
    """One run's events as frames, from the first event after sequence number `after` to its terminal event. What is
    there already goes out together: a busy server sends less often, never later."""
    async with contextlib.aclosing(run.events(after)) as events:
        while True:
            frames = b""
            while len(frames) < SEND_BYTES and (item := events.ready()) is not None:
                frames += encoder.encode(item[1], sequence=item[0])
            if frames:
                yield frames
            elif (arrival := events.arrival()) is not None:
                await arrival
            else:
                break
    if tail := encoder.finish():
        yield tail


def stream_run(run: AnyRun, encoder: Encoder, *, interval: float, after: int = 0) -> EventStream:
    return EventStream(
        frames_of(run, encoder, after),
        content_type=encoder.content_type,
        keep_alive=encoder.keep_alive,
        interval=interval,
        headers=id_headers(run),
    )


def id_headers(run: AnyRun) -> dict[str, str]:
    """The ids of a run. Clients choose them freely and headers hold ASCII, so the rest is percent-encoded."""
    return {"x-run-id": quote(run.id, PLAIN), "x-thread-id": quote(run.thread_id, PLAIN)}
