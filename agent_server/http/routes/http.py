"""Shared by all HTTP routes: reading a body within limits, error responses, and streaming a run."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.body import Limits, read_json
from adapters.errors import RequestError
from adapters.forwarded_props import REQUEST_KEY
from agent_server.engine_protocol.protocol import EngineError
from agent_server.fair_slots import FairSlots
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.http.middleware.context import connection_of, stream_send
from agent_server.http.middleware.errors import error_response

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun
    from events.vocabulary import Event

RETRY_AFTER = 1.0
REST_SECONDS = 10e-9
"""How long the slot for stored content rests for each byte of its answer, which takes about 2 ns to decode and to
encode: 35 ms after 3.5 MB. The event loop is then free most of the time, however many of them are requested."""
STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
SEND_BYTES = 32 * 1024
PLAIN = "!#$&'()*+,/:;=?@[]~"
"""Characters besides letters, digits and `_.-` that are not percent-encoded in id headers."""
_IS_PLAIN = re.compile(rf"[A-Za-z0-9_.\-{re.escape(PLAIN)}]*").fullmatch


class Encoder(Protocol):
    """The outbound half of a wire: encodes each event as zero or more complete frames."""

    @property
    def content_type(self) -> str: ...

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes: ...

    def finish(self) -> bytes: ...

    def keep_alive(self) -> bytes: ...


def guarded(
    endpoint: Callable[[Request], Awaitable[Response]], slots: FairSlots | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """Convert an endpoint's RequestErrors and EngineErrors to error responses in its wire's format.

    slots: for an endpoint that encodes megabytes of stored content. Without them, a hundred such requests at once are
    encoded one after the other before the event loop serves anybody else.
    """

    async def handle(request: Request) -> Response:
        try:
            if slots is None:
                return await endpoint(request)
            async with slots.hold(request.state.tenant) as hold:
                response = await endpoint(request)
                hold.rest = len(getattr(response, "body", b"")) * REST_SECONDS
                await asyncio.sleep(0)  # what became ready meanwhile goes before the next of these answers
                return response
        except RequestError as error:
            return error_response(request.scope, error)
        except EngineError as error:
            refused = RequestError(error.kind, error.message, error.param, RETRY_AFTER if error.retryable else None)
            return error_response(request.scope, refused)

    return handle


class Frames(Protocol):
    """A source of an answer's frames. `aclose` is called once, however the stream ends."""

    def ready(self) -> bytes:
        """The frames that are available now, about SEND_BYTES at most; b"" if there are none."""

    def arrival(self) -> Awaitable[object] | None:
        """An awaitable for the next frames; None at the end."""

    def finish(self) -> bytes:
        """The bytes that end the stream."""

    async def aclose(self) -> None: ...


class GeneratedFrames:
    """The frames of an async generator."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self._frames = frames
        self._next = b""
        self._exhausted = False

    def ready(self) -> bytes:
        frames, self._next = self._next, b""
        return frames

    def arrival(self) -> Awaitable[object] | None:
        return None if self._exhausted else self._advance()

    async def _advance(self) -> None:
        try:
            self._next = await anext(self._frames)
        except StopAsyncIteration:
            self._exhausted = True

    def finish(self) -> bytes:
        return b""

    async def aclose(self) -> None:
        await self._frames.aclose()


class EventStream(Response):
    """Streams frames, sends keep-alives, and detects that the client disconnected even while nothing is sent.

    However the stream ends, the frames are closed, which releases their reader of the run. disconnect: the future of
    `watch_disconnect`, if the caller has one already.
    """

    def __init__(
        self,
        frames: Frames,
        *,
        content_type: str,
        keep_alive: Callable[[], bytes],
        interval: float,
        headers: dict[str, str] | None = None,
        disconnect: asyncio.Future[None] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self.raw_headers = [*STREAM_HEADERS, *own, (b"content-type", content_type.encode())]
        self._frames = frames
        self._keep_alive = keep_alive
        self._interval = interval
        self._leaving = disconnect
        self._last = 0.0
        self._is_sending = False
        self._timer: asyncio.TimerHandle
        self._keep_alive_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send = stream_send(scope, send)
        self._last = asyncio.get_running_loop().time()
        # A task of its own: a token then wakes this task, not the whole chain of awaiting middleware.
        sending = asyncio.create_task(self._send_all(send))
        disconnect = self._leaving or watch_disconnect(scope, receive)
        self._schedule_keep_alive(send, self._interval)
        try:
            await first_of(sending, disconnect)
        finally:
            self._timer.cancel()
            unwatch_disconnect(disconnect)
            for task in (self._keep_alive_task, sending):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, OSError):
                        await task
            await self._frames.aclose()
        if self.background is not None:
            await self.background()

    async def _send_all(self, send: Send) -> None:
        """Send all frames. Those that are ready are sent together: a busy server sends less often, never later."""
        now, frames = asyncio.get_running_loop().time, self._frames
        while True:
            if body := frames.ready():
                self._last = now()
                self._is_sending = True
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._is_sending = False
            elif (arrival := frames.arrival()) is not None:
                await arrival
            else:
                break
        self._last = math.inf
        await send({"type": "http.response.body", "body": frames.finish(), "more_body": False})

    def _schedule_keep_alive(self, send: Send, seconds: float) -> None:
        """Check in `seconds` whether a keep-alive is due, because nothing was sent for the interval.

        Costs one timer while frames are frequent.
        """
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_idle, send)

    def _check_idle(self, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        if self._last == math.inf:  # the last frame is being sent
            return
        remaining = self._last + self._interval - now
        if remaining <= 0:
            remaining, self._last = self._interval, now
            # Not within a frame that is sent in slices, nor before the client has read the previous one.
            if not self._is_sending and (self._keep_alive_task is None or self._keep_alive_task.done()):
                self._keep_alive_task = asyncio.create_task(self._send_keep_alive(send))
        self._schedule_keep_alive(send, remaining)

    async def _send_keep_alive(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": self._keep_alive(), "more_body": True})


def watch_disconnect(scope: Scope, receive: Receive) -> asyncio.Future[None]:
    """Return a future that is done when the client disconnects. Release it with `unwatch_disconnect`."""
    return connection_of(scope) or asyncio.create_task(wait_disconnect(receive))


def unwatch_disconnect(disconnect: asyncio.Future[None]) -> None:
    """Stop watching for a disconnect. A future of the connection itself is left alone: other requests share it."""
    if isinstance(disconnect, asyncio.Task):
        disconnect.cancel()


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(*futures: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Wait until one of the futures is done, or for at most `seconds`.

    Cheaper than `asyncio.wait`, which matters because every streamed request waits like this twice.
    """
    if any(future.done() for future in futures):
        return
    loop = asyncio.get_running_loop()
    first_done = loop.create_future()

    def end(_: object = None) -> None:
        if not first_done.done():
            first_done.set_result(None)

    timer = None if seconds is None else loop.call_later(seconds, end)
    for future in futures:
        future.add_done_callback(end)
    try:
        await first_done
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(end)


class RunFrames:
    """A run's events as frames, from the event after sequence number `after` to the terminal event."""

    def __init__(self, run: AnyRun, encoder: Encoder, after: int = 0) -> None:
        self._events = run.events(after)
        self._encoder = encoder

    def ready(self) -> bytes:
        frames = b""
        while len(frames) < SEND_BYTES and (item := self._events.ready()) is not None:
            frames += self._encoder.encode(item[1], sequence=item[0])
        return frames

    def arrival(self) -> Awaitable[object] | None:
        return self._events.arrival()

    def finish(self) -> bytes:
        return self._encoder.finish()

    async def aclose(self) -> None:
        await self._events.aclose()


async def each_of(frames: Frames) -> AsyncGenerator[bytes, None]:
    """Yield the frames from a generator, so that a caller can send others before them."""
    try:
        while True:
            if body := frames.ready():
                yield body
            elif (arrival := frames.arrival()) is not None:
                await arrival
            else:
                break
        if tail := frames.finish():
            yield tail
    finally:
        await frames.aclose()


def stream_run(run: AnyRun, encoder: Encoder, *, interval: float, after: int = 0) -> EventStream:
    return EventStream(
        RunFrames(run, encoder, after),
        content_type=encoder.content_type,
        keep_alive=encoder.keep_alive,
        interval=interval,
        headers=id_headers(run),
    )


def id_headers(run: AnyRun) -> dict[str, str]:
    """The headers with a run's ids. Clients choose ids freely, so what is not plain ASCII is percent-encoded."""
    return {"x-run-id": _header_text(run.id), "x-thread-id": _header_text(run.thread_id)}


def _header_text(text: str) -> str:
    return text if _IS_PLAIN(text) else quote(text, PLAIN)


P = ParamSpec("P")
T = TypeVar("T")
LARGE = 64 * 1024
"""Bytes above which parsing takes longer than the handover to a thread."""
COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})
"""Content codings (RFC 9110, 8.4.1; IANA). Any other value, such as a misplaced charset, is ignored."""
APP_BODY_READERS = 8
"""Bodies that may be read at once while the server has no capacity for another run."""
app_body_readers = BoundedSemaphore(APP_BODY_READERS)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the raw body.

    Raises RequestError("payload_too_large") as soon as it exceeds `limit` bytes, and RequestError
    ("unsupported_media_type") for a compressed body, whose length does not limit its decompressed size.
    """
    codings = request.headers.get("content-encoding", "").lower().split(",")
    if not COMPRESSED.isdisjoint(coding.strip() for coding in codings):
        raise RequestError(
            "unsupported_media_type", "Compressed bodies are not supported. Send the body without Content-Encoding."
        )
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


async def read_struct(request: Request, kind: type[T], limit: int, hint: str) -> T:
    """Read a JSON body of at most `limit` bytes as a struct. Raises RequestError; its message begins with `hint`."""
    body = await read_body(request, limit)

    def decode() -> T:
        return msgspec.convert(read_json(body, Limits(body=limit)), type=kind)

    try:
        return await parse_off_loop(len(body), decode)
    except RequestError as error:
        raise RequestError(error.kind, f"{hint}: {error.message}", error.param) from None
    except msgspec.ValidationError as error:
        raise RequestError("invalid_request", f"{hint}: {str(error)[:300]}") from None


async def read_run_body(server: Server, request: Request) -> bytes:
    """Read the raw body of a request that starts a run.

    If the server has no capacity for the run, raises what `RunManager.start` would raise: before the body is read, and
    again before it is parsed, since a client may send it slowly.
    """
    server.runs.check_room(request.state.tenant)
    body = await read_body(request, server.settings.http.max_body)
    server.runs.check_room(request.state.tenant)
    return body


async def read_run_or_app_body(server: Server, request: Request) -> bytes:
    """As `read_run_body`, for an endpoint that also answers requests of MCP apps' pages, which start no run.

    Only the body shows which of the two it is. So without capacity for a run, but with MCP servers, bodies are read all
    the same, at most APP_BODY_READERS at a time.
    """
    tenant, limit = request.state.tenant, server.settings.http.max_body
    refusal = _refusal(server, tenant)
    if refusal is None:
        body = await read_body(request, limit)
        refusal = _refusal(server, tenant)
    elif refusal.kind == "overloaded" and server.mcp is not None and app_body_readers.acquire(blocking=False):
        try:
            body = await read_body(request, limit)
        finally:
            app_body_readers.release()
    else:
        raise refusal
    if refusal is not None and REQUEST_KEY.encode() not in body:
        raise refusal
    return body


def _refusal(server: Server, tenant: str) -> RequestError | None:
    try:
        server.runs.check_room(tenant)
    except RequestError as refusal:
        return refusal
    return None


async def read_request(
    server: Server, request: Request, parse: Callable[[bytes], T], *, starts_run: bool = True, apps: bool = False
) -> T:
    """Read the body and parse it.

    starts_run: refuse the request without reading it if there is no capacity for a run. apps: see
    `read_run_or_app_body`. Raises RequestError.
    """
    if starts_run and apps:
        body = await read_run_or_app_body(server, request)
    elif starts_run:
        body = await read_run_body(server, request)
    else:
        body = await read_body(request, server.settings.http.max_body)
    return await parse_off_loop(len(body), parse, body)


async def parse_off_loop(size: int, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `parse`, in a thread if its input of `size` bytes is large, so that no other request waits for it."""
    return parse(*args, **kwargs) if size <= LARGE else await REQUEST_THREADS.run(parse, *args, **kwargs)
