"""HTTP to one upstream: kept connections, every wait bounded, frames as they arrive.

It uses aiohttp, because its parser is compiled: a frame of a stream costs about a quarter of what it costs with httpx
(8 to 11 µs against 30 to 37, 128 streams on one core). The socket is only read while the caller takes frames, so a slow
reader makes the upstream's writes wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.errors import error_of
from agent_server.observability.tracing import outgoing
from agent_server.settings import UpstreamSettings
from agent_server.user import current_user, forward_of

WORKER = "worker"
"""The prefix of the URL of an `agent-server worker`, which speaks the engine protocol itself."""
DIALECTS = ("vllm", "vllm-tokens", "sglang", "llamacpp", "openai", WORKER)
"""The prefixes of a URL. Each but WORKER has a module in agent_server.engines.upstream.dialects."""


class UpstreamAddress(msgspec.Struct, frozen=True):
    """The address of an upstream. url: without a trailing slash. dialect: None to detect it. key: sent as a bearer
    token."""

    url: str
    dialect: str | None = None
    key: str = ""


def parse_address(text: str, key: str = "") -> UpstreamAddress:
    """Parse a URL with an optional dialect prefix. A key in the URL (`http://:KEY@host`) takes precedence over `key`.
    Raises ValueError with one sentence."""
    scheme, separator, rest = text.strip().partition("://")
    dialect, _, plain = scheme.rpartition("+")
    if not separator or plain not in ("http", "https") or not rest:
        raise ValueError(f"{text!r} is not the URL of an engine. Use http://host:8000 or vllm+http://host:8000.")
    if dialect and dialect not in DIALECTS:
        raise ValueError(f"Unknown engine dialect {dialect!r}. Use one of {', '.join(DIALECTS)}.")
    parts = urlsplit(f"{plain}://{rest}")
    if not parts.hostname:
        raise ValueError(f"{text!r} has no host.")
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/").removesuffix("/v1")
    return UpstreamAddress(urlunsplit((plain, host, path, "", "")), dialect or None, parts.password or key)


MAX_FRAME = 16 * 2**20
"""Maximum size of a frame in bytes. A longer body without the end of a frame is not a stream of server-sent events."""


class FrameError(ValueError):
    """The bytes are not server-sent events."""


class FrameSplitter:
    """`feed` takes bytes and returns the data of the frames that are complete. Comments and other fields are skipped. A
    frame that the end of the body cuts off is dropped, as the standard demands."""

    def __init__(self) -> None:
        self._frame_parts: list[bytes] = []  # the beginning of a frame, in parts: joined once, however many there are
        self._size = 0
        self._tail = b""  # what may be the first half of a line end or of a frame's end

    def feed(self, chunk: bytes) -> list[bytes]:
        return [data for frame in self.split(chunk) if (data := _data(frame))]

    def split(self, chunk: bytes) -> list[bytes]:
        """Return the frames that are complete, with all of their lines, which end in LF."""
        block = self._tail + chunk if self._tail else chunk
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        first, *others = block.split(b"\n\n")
        if not others:
            self._keep(block)
            return []
        *frames, rest = [b"".join((*self._frame_parts, first)), *others]
        self._frame_parts, self._size = [], 0
        self._keep(rest)
        return frames

    def _keep(self, rest: bytes) -> None:
        tail_size = next((len(end) for end in (b"\n\r", b"\n", b"\r") if rest.endswith(end)), 0)
        whole = len(rest) - tail_size
        self._tail = rest[whole:]
        if whole:
            self._frame_parts.append(rest[:whole])
            self._size += whole
        if self._size > MAX_FRAME:
            raise FrameError(f"a frame of more than {MAX_FRAME} bytes")


def _data(frame: bytes) -> bytes:
    frame = frame.lstrip(b"\n")
    if frame.startswith(b"data:") and b"\n" not in frame:
        return frame[5:].strip()
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


KEEP_ALIVE_SECONDS = 4.0
"""How long an unused connection is kept: less than the five seconds after which uvicorn, which vLLM and SGLang use,
closes it."""
MAX_ANSWER = 16 * 2**20
"""Bytes of an answer that is not a stream."""
TAIL_SECONDS = 2.0
"""Time for reading the rest of a body after its last frame, so that the connection can be used again."""
FAILURES = (aiohttp.ClientError, OSError, FrameError)
CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError, BrokenPipeError)
"""How a kept connection fails that the server closed: before the request, or (ClientOSError) while its body was
written. A connection that could not be made is a ClientConnectorError, which is a ClientOSError as well."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole answer. `json()` is None if the body is not JSON."""

    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            return None


class Transport:
    """The connections to one upstream. `close` ends them all."""

    def __init__(self, address: UpstreamAddress, settings: UpstreamSettings) -> None:
        self.address = address
        self._settings = settings
        self._forward = forward_of(settings.forward)
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self._opening: set[asyncio.Future[aiohttp.ClientResponse]] = set()

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, which is made on first use because it needs a running event loop."""
        if self._session is None:
            headers = {"Authorization": f"Bearer {self.address.key}"} if self.address.key else {}
            self._session = aiohttp.ClientSession(
                # No limit here: the engine itself limits how many generations run at once.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect),
                headers={**headers, "Content-Type": "application/json"},
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections; requests and streams that are open end with an EngineError."""
        # Requests whose answer has not begun have no response yet that could be closed.
        for opening in self._opening:
            opening.cancel()
        for response in self._responses:
            response.close()
        if self._session is not None:
            await self._session.close()

    async def ask(self, path: str, body: Any = None, *, seconds: float | None = None) -> HttpAnswer:
        """GET a path, or POST a body to it, and return the whole answer. Raises EngineError("unavailable")."""
        limit = seconds or self._settings.idle
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(limit),
                self._open_session().request("GET" if data is None else "POST", self._url(path), data=data) as response,
            ):
                return HttpAnswer(response.status, await _whole(response))
        except TimeoutError as error:
            raise self._unavailable(f"does not answer within {limit:g} s") from error
        except FAILURES as error:
            raise self._unavailable(f"cannot be reached: {_why(error)}") from error

    def _url(self, path: str) -> str:
        return self.address.url + path

    def _unavailable(self, what: str) -> EngineError:
        return EngineError("unavailable", f"The upstream {self.address.url} {what}.", retryable=True)

    async def stream(
        self, path: str, body: bytes, alive: Callable[[], Awaitable[bool]], splitter: FrameSplitter | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the data of a stream's frames, in lists of frames that arrived together, up to the end of the body.

        Closing the generator closes the connection, which tells these servers to cancel the generation. alive: a health
        check, called while the first frame has not come within `idle` seconds. splitter: for frames of another kind.
        Raises EngineError: that of the status, "timeout" or "connection".
        """
        response = await self._response(path, body, alive)
        self._responses.add(response)
        complete = False
        try:
            if response.status != 200:
                async with asyncio.timeout(self._settings.idle):
                    raise error_of(response.status, await _whole(response))
            if response.content_type != "text/event-stream":
                raise EngineError(
                    "connection",
                    f"The upstream answered with {response.content_type} instead of a stream.",
                    retryable=True,
                )
            async for frames in self._frames(response, alive, splitter or FrameSplitter()):
                yield frames
            complete = True
        except FAILURES as error:
            raise EngineError("connection", f"The upstream's stream broke: {_why(error)}.", retryable=True) from error
        finally:
            self._responses.discard(response)
            # Only a body that was read to its end leaves a connection that can be used again.
            if complete:
                response.release()
            else:
                response.close()

    async def _response(self, path: str, body: bytes, alive: Callable[[], Awaitable[bool]]) -> aiohttp.ClientResponse:
        """Send the request and read the status and headers of the answer. If the server closed a kept connection just
        before, it has not read the request, so the request is sent once more on a new connection."""
        try:
            return await self._head(path, body, alive)
        except FAILURES as error:
            if isinstance(error, aiohttp.ClientConnectorError) or not isinstance(error, CLOSED):
                raise self._unavailable(f"cannot be reached: {_why(error)}") from error
        try:
            return await self._head(path, body, alive)
        except FAILURES as error:
            raise self._unavailable(f"closed the connection: {_why(error)}") from error

    async def _head(self, path: str, body: bytes, alive: Callable[[], Awaitable[bool]]) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        patience = loop.time() + self._settings.first
        # A task of its own: a time-out around the call would cancel the request, which must continue during a health
        # check.
        headers = {**self._forward.headers_for(current_user.get()), **outgoing()}
        opening = asyncio.ensure_future(self._open_session().post(self._url(path), data=body, headers=headers))
        self._opening.add(opening)
        try:
            while not (await asyncio.wait({opening}, timeout=self._settings.idle))[0]:
                if loop.time() >= patience or not await alive():
                    raise self._silent()
            if opening.cancelled():
                raise self._unavailable("is not used any more: the engine was closed")
            return opening.result()
        except BaseException:
            # Cancel the request, or close its response if that has come meanwhile.
            if not opening.done():
                opening.cancel()
            elif not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            raise
        finally:
            self._opening.discard(opening)

    async def _frames(
        self, response: aiohttp.ClientResponse, alive: Callable[[], Awaitable[bool]], splitter: FrameSplitter
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield lists of frames. Only frames reset the limit on silence: comments may come from a proxy whose server is
        gone."""
        loop = asyncio.get_running_loop()
        idle = self._settings.idle
        end = loop.time() + self._settings.total
        patience: float | None = loop.time() + self._settings.first
        deadline = loop.time() + idle
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await response.content.readany()
            except aiohttp.ClientError:
                # Tokens that arrived before the connection broke are delivered before the error is raised. aiohttp has
                # no public way to read them after it.
                buffer = getattr(response.content, "_buffer", ())
                rest = splitter.feed(b"".join(buffer))
                if buffer:
                    buffer.clear()
                if rest:
                    yield rest
                raise
            except TimeoutError:
                # Before the first frame silence is normal (a queue, a long prompt) while the server passes health
                # checks.
                if patience is None or loop.time() >= patience or not await alive():
                    raise self._silent() from None
                deadline = loop.time() + idle
                continue
            if not chunk:
                return
            # Checked only when data arrives, because silence has a shorter limit of its own.
            if loop.time() >= end:
                raise EngineError(
                    "timeout",
                    f"The generation took longer than {self._settings.total:g} s (AGENT_SERVER_RUN_TIME_LIMIT).",
                )
            frames = splitter.feed(chunk)
            if frames:
                patience = None
                yield frames
                deadline = loop.time() + idle

    def _silent(self) -> EngineError:
        return EngineError(
            "timeout", f"The upstream {self.address.url} sent nothing within the time limit.", retryable=True
        )


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise FrameError(f"an answer of more than {MAX_ANSWER} bytes")
    return bytes(body)


def _why(error: BaseException) -> str:
    """Return one line about a failure of the connection; the name of its class if it has no text."""
    text = " ".join(str(error).split())
    return text[:200] if text else type(error).__name__
