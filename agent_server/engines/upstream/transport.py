"""HTTP to one upstream: kept connections, every wait bounded, frames as they arrive.

aiohttp, because its parser is compiled: a frame of a stream costs about a quarter of what it costs with httpx
(8 to 11 µs against 30 to 37, 128 streams on one core). What is read is what was asked for: when nobody takes frames,
the socket is not read either, and the upstream's writes wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from agent_server.engine.protocol import EngineError
from agent_server.engines.upstream.address import Address
from agent_server.engines.upstream.errors import error_of
from agent_server.engines.upstream.frames import FrameError, FrameSplitter
from agent_server.engines.upstream.settings import UpstreamSettings

KEEP_ALIVE_SECONDS = 4.0
"""Below the five seconds after which uvicorn, under vLLM and SGLang, closes a connection that nobody uses."""
MAX_ANSWER = 16 * 2**20
"""Bytes of an answer that is no stream."""
TAIL_SECONDS = 2.0
"""For the rest of a body whose last frame has come, so that the connection can be used again."""
FAILURES = (aiohttp.ClientError, OSError, FrameError)


class Answer(msgspec.Struct, frozen=True):
    """A whole answer; `json()` is None where the body is none."""

    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class Transport:
    """One upstream's connections. `close` ends them all."""

    def __init__(self, address: Address, settings: UpstreamSettings) -> None:
        self.address = address
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self._opening: set[asyncio.Future[aiohttp.ClientResponse]] = set()

    def _open_session(self) -> aiohttp.ClientSession:
        """Made on first use, which is inside of the event loop."""
        if self._session is None:
            headers = {"Authorization": f"Bearer {self.address.key}"} if self.address.key else {}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect),
                headers={**headers, "Content-Type": "application/json"},
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Whoever waits for something gets an EngineError."""
        for opening in self._opening:
            opening.cancel()
        for response in self._responses:
            response.close()
        if self._session is not None:
            await self._session.close()

    async def ask(self, path: str, body: Any = None, *, seconds: float | None = None) -> Answer:
        """GET, or POST with a body: the whole answer. Raises EngineError("unavailable")."""
        limit = seconds or self._settings.idle
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(limit),
                self._open_session().request("GET" if data is None else "POST", self._url(path), data=data) as response,
            ):
                return Answer(response.status, await _whole(response))
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
        """The data of a stream's frames, in lists of what arrived together; ends when the body does.

        Closing it closes the connection, which is how these servers are told that nobody wants the rest. `alive`: asked
        when nothing comes before the first frame. splitter: for frames of another kind.
        Raises EngineError: the status's, "timeout", "connection".
        """
        response = await self._response(path, body, alive)
        self._responses.add(response)
        complete = False
        try:
            await self._check(response)
            async for frames in self._frames(response, alive, splitter or FrameSplitter()):
                yield frames
            complete = True
        except FAILURES as error:
            raise EngineError("connection", f"The upstream's stream broke: {_why(error)}.", retryable=True) from error
        finally:
            self._responses.discard(response)
            if complete:
                response.release()
            else:
                response.close()

    async def _response(self, path: str, body: bytes, alive: Callable[[], Awaitable[bool]]) -> aiohttp.ClientResponse:
        """The head of the answer. A kept connection that the server had just closed is replaced once: it has not
        read the request."""
        try:
            return await self._head(path, body, alive)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError):
            pass
        except FAILURES as error:
            raise self._unavailable(f"cannot be reached: {_why(error)}") from error
        try:
            return await self._head(path, body, alive)
        except FAILURES as error:
            raise self._unavailable(f"closed the connection: {_why(error)}") from error

    async def _head(self, path: str, body: bytes, alive: Callable[[], Awaitable[bool]]) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        patience = loop.time() + self._settings.first
        opening = asyncio.ensure_future(self._open_session().post(self._url(path), data=body))
        self._opening.add(opening)
        try:
            while not (await asyncio.wait({opening}, timeout=self._settings.idle))[0]:
                if loop.time() >= patience or not await alive():
                    raise self._silent()
            if opening.cancelled():
                raise self._unavailable("is not asked any more")
            return opening.result()
        except BaseException:
            _abandon(opening)
            raise
        finally:
            self._opening.discard(opening)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            async with asyncio.timeout(self._settings.idle):
                raise error_of(response.status, await _whole(response))
        if response.content_type != "text/event-stream":
            raise EngineError(
                "connection", f"The upstream answered with {response.content_type} instead of a stream.", retryable=True
            )

    async def _frames(
        self, response: aiohttp.ClientResponse, alive: Callable[[], Awaitable[bool]], splitter: FrameSplitter
    ) -> AsyncGenerator[list[bytes], None]:
        """Only frames count as a sign of life: a proxy's comments say nothing about what is behind it."""
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
                left = splitter.feed(_left(response.content))
                if left:
                    yield left
                raise
            except TimeoutError:
                if patience is None or loop.time() >= patience or not await alive():
                    raise self._silent() from None
                deadline = loop.time() + idle
                continue
            if not chunk:
                return
            if loop.time() >= end:
                raise EngineError("timeout", f"The generation took longer than {self._settings.total:g} s.")
            frames = splitter.feed(chunk)
            if frames:
                patience = None
                yield frames
                deadline = loop.time() + idle

    def _silent(self) -> EngineError:
        return EngineError("timeout", f"The upstream {self.address.url} sent nothing for too long.", retryable=True)


def _left(content: aiohttp.StreamReader) -> bytes:
    """What had arrived when the connection broke; aiohttp keeps it and does not give it out any more."""
    buffer = getattr(content, "_buffer", ())
    left = b"".join(buffer)
    if buffer:
        buffer.clear()
    return left


def _abandon(opening: asyncio.Future[aiohttp.ClientResponse]) -> None:
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise FrameError(f"an answer of more than {MAX_ANSWER} bytes")
    return bytes(body)


def _why(error: BaseException) -> str:
    """One line about a failure of the connection; some have no text of their own."""
    text = " ".join(str(error).split())
    return text[:200] if text else type(error).__name__
