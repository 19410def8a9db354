"""What every HTTP route shares: reading a bounded body, error answers, and streaming a run."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.errors import RequestError
from adapters.forwarded_props import REQUEST_KEY
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.middleware.context import connection_of, stream_send
from agent_server.http.middleware.errors import error_response

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun
    from events.vocabulary import Event

RETRY_AFTER = 1.0
STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
SEND_BYTES = 32 * 1024
PLAIN = "!#$&'()*+,/:;=?@[]~"
"""Characters besides letters, digits and `_.-` that an id keeps in a header."""
_IS_PLAIN = re.compile(rf"[A-Za-z0-9_.\-{re.escape(PLAIN)}]*").fullmatch


class Encoder(Protocol):
    """The outbound half of a wire: events in, zero or more whole frames out."""

    @property
    def content_type(self) -> str: ...

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes: ...

    def finish(self) -> bytes: ...

    def keep_alive(self) -> bytes: ...


def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose RequestErrors and EngineErrors become answers in the shape of its wire."""

    async def handle(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestError as error:
            return error_response(request.scope, error)
        except EngineError as error:
            refused = RequestError(error.kind, error.message, error.param, RETRY_AFTER if error.retryable else None)
            return error_response(request.scope, refused)

    return handle


class Frames(Protocol):
    """The frames of an answer, taken by who sends them. `aclose` is called once, however it ends."""

    def ready(self) -> bytes:
        """What is there already, some SEND_BYTES at most; b"" if nothing is."""

    def arrival(self) -> Awaitable[object] | None:
        """What to await when nothing is `ready`; None at the end."""

    def finish(self) -> bytes:
        """What goes out last."""

    async def aclose(self) -> None: ...


class Generated:
    """Frames that a generator makes."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self._frames = frames
        self._next = b""
        self._over = False

    def ready(self) -> bytes:
        frames, self._next = self._next, b""
        return frames

    def arrival(self) -> Awaitable[object] | None:
        return None if self._over else self._advance()

    async def _advance(self) -> None:
        try:
            self._next = await anext(self._frames)
        except StopAsyncIteration:
            self._over = True

    def finish(self) -> bytes:
        return b""

    async def aclose(self) -> None:
        await self._frames.aclose()


class EventStream(Response):
    """Streams frames, notices a client that left even while nothing is being sent, and keeps the line warm.

    Whatever ends the stream, the frames are closed, which releases their reader of the run. leaving: what is done when
    the client goes, as `departure` gives it, if that was asked for already.
    """

    def __init__(
        self,
        frames: Frames,
        *,
        content_type: str,
        keep_alive: Callable[[], bytes],
        interval: float,
        headers: dict[str, str] | None = None,
        leaving: asyncio.Future[None] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self.raw_headers = [*STREAM_HEADERS, *own, (b"content-type", content_type.encode())]
        self._frames = frames
        self._keep_alive = keep_alive
        self._interval = interval
        self._leaving = leaving
        self._last = 0.0
        self._timer: asyncio.TimerHandle
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send = stream_send(scope, send)
        self._last = asyncio.get_running_loop().time()
        # in a task of its own: a token wakes this one and not the whole chain of those who wait for the answer
        sending = asyncio.create_task(self._send_all(send))
        leaving = self._leaving or departure(scope, receive)
        self._keep_warm(send, self._interval)
        try:
            await first_of(sending, leaving)
        finally:
            self._timer.cancel()
            stay(leaving)
            for task in (self._warming, sending):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, OSError):
                        await task
            await self._frames.aclose()
        if self.background is not None:
            await self.background()

    async def _send_all(self, send: Send) -> None:
        """What is there already goes out together: a busy server sends less often, never later."""
        now, frames = asyncio.get_running_loop().time, self._frames
        while True:
            if body := frames.ready():
                self._last = now()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            elif (arrival := frames.arrival()) is not None:
                await arrival
            else:
                break
        self._last = math.inf
        await send({"type": "http.response.body", "body": frames.finish(), "more_body": False})

    def _keep_warm(self, send: Send, seconds: float) -> None:
        """A keep-alive whenever nothing was sent for the interval, looked at again in so many seconds. It costs one
        timer where frames are frequent."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look, send)

    def _look(self, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        if self._last == math.inf:  # the last frame is on its way
            return
        rest = self._last + self._interval - now
        if rest <= 0:
            rest, self._last = self._interval, now
            if self._warming is None or self._warming.done():  # else the client does not even take the one before
                self._warming = asyncio.create_task(self._warm(send))
        self._keep_warm(send, rest)

    async def _warm(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": self._keep_alive(), "more_body": True})


def departure(scope: Scope, receive: Receive) -> asyncio.Future[None]:
    """Done when the client is gone. To be let go of with `stay`."""
    return connection_of(scope) or asyncio.create_task(left(receive))


def stay(leaving: asyncio.Future[None]) -> None:
    """Wait no longer for the client to go. The connection itself is other requests' too."""
    if isinstance(leaving, asyncio.Task):
        leaving.cancel()


async def left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(*futures: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Wait until one of them is done, for at most so long. What `asyncio.wait` does for more of everything, and every
    streamed request waits like this twice."""
    if any(future.done() for future in futures):
        return
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    timer = None if seconds is None else loop.call_later(seconds, end)
    for future in futures:
        future.add_done_callback(end)
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(end)


class RunFrames:
    """One run's events as frames, from the first event after sequence number `after` to its terminal event."""

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
    """The same frames from a generator, so that a caller can send others before them."""
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
    """The ids of a run. Clients choose them freely and headers hold ASCII, so the rest is percent-encoded."""
    return {"x-run-id": _header_text(run.id), "x-thread-id": _header_text(run.thread_id)}


def _header_text(text: str) -> str:
    return text if _IS_PLAIN(text) else quote(text, PLAIN)


P = ParamSpec("P")
T = TypeVar("T")
LARGE = 64 * 1024
"""Bytes from which on parsing takes longer than handing it to a thread."""
COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})
"""Content codings (RFC 9110, 8.4.1; IANA). Other values are a charset that was put there, and change nothing."""
PARSERS = 2
"""Large bodies that are parsed at once. More would not be faster, since each thread needs the interpreter's lock, and
the event loop would wait for the lock behind all of them."""
BESIDE_PLACES = 8
"""Bodies that are read at a time although there is no place for a run."""
beside = BoundedSemaphore(BESIDE_PLACES)
_parsers = ThreadPoolExecutor(PARSERS, thread_name_prefix="parse")


async def read_body(request: Request, limit: int) -> bytes:
    """The raw body; RequestError("payload_too_large") as soon as it is longer than `limit` bytes, and
    "unsupported_media_type" for one that is compressed: its length says nothing about what it would become."""
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


async def read_struct(request: Request, kind: type[T], most: int, hint: str) -> T:
    """Read a JSON body of at most `most` bytes as a struct. Raises RequestError, which begins with the hint."""
    try:
        return msgspec.json.decode(await read_body(request, most), type=kind)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_request", f"{hint}: {str(error)[:300]}") from None


async def read_run_body(server: Server, request: Request) -> bytes:
    """The raw body of a request that starts a run.

    Where the server has no place for the run, it is refused with what `RunManager.start` would raise: before the body
    is read, and once more before it is parsed, since a client may take its time to send one.
    """
    server.runs.check_room(request.state.tenant)
    body = await read_body(request, server.settings.http.max_body)
    server.runs.check_room(request.state.tenant)
    return body


async def read_run_or_app_body(server: Server, request: Request) -> bytes:
    """As `read_run_body`, for an endpoint that answers the pages of MCP apps, too: their requests are no runs and take
    no place. Which one it is shows in the body, so where there is no place, and there are MCP servers, some bodies are
    read all the same, at most BESIDE_PLACES at a time."""
    tenant, limit = request.state.tenant, server.settings.http.max_body
    refusal = _refusal(server, tenant)
    if refusal is None:
        body = await read_body(request, limit)
        refusal = _refusal(server, tenant)
    elif refusal.kind == "overloaded" and server.mcp is not None and beside.acquire(blocking=False):
        try:
            body = await read_body(request, limit)
        finally:
            beside.release()
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
    """Read the body and parse it. apps: see `read_run_or_app_body`. Raises RequestError, for a run without a place
    before anything is read."""
    if starts_run and apps:
        body = await read_run_or_app_body(server, request)
    elif starts_run:
        body = await read_run_body(server, request)
    else:
        body = await read_body(request, server.settings.http.max_body)
    return await parse_beside(len(body), parse, body)


async def parse_beside(size: int, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `parse`, in a thread where `size`, its input's bytes, is large: no other request waits for it."""
    if size <= LARGE:
        return parse(*args, **kwargs)
    noting = copy_context()  # the notes that are taken of the request
    return await asyncio.get_running_loop().run_in_executor(_parsers, partial(noting.run, parse, *args, **kwargs))
