"""The HTTP client of sessions with MCP servers: the SDK gets an answer to every request, whatever a server does.

It limits messages and repairs them (see `repairs`), answers in place of an unavailable server, so that a failed request
does not end the others, and stops reading the answer to a request that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError, OAuthTokenError
from mcp.client.streamable_http import MCP_SESSION_ID

from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.limited_body import EVENTS, has_events, limit_body
from agent_server.agents.mcp.repairs import MESSAGE_BYTES, messages_in, printable, repair_message
from agent_server.certificates import ssl_context

logger = logging.getLogger("agent_server.mcp")
BRIEF_SECONDS = 10.0
"""How long a server may take to accept what needs no answer: a notification, or the DELETE that ends a session. The SDK
sends nothing else meanwhile."""
STREAM_SECONDS = 0.1
"""The least interval between two GET requests, with which the SDK opens streams again as soon as the server allows."""
EXPIRED = "agent_server: session expired"
CONSENT = "agent_server: consent "
UNREACHABLE = "agent_server: unreachable"
"""The `data` of errors that replace a missing answer: the server refused the session, requires the user's consent (at
the URL that follows), or was unreachable or died during the request. In the first two cases the request was not
executed."""


class GuardedClient(httpx2.AsyncClient):
    """An HTTP client whose requests to an MCP server always return an answer that the SDK can read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(event_hooks={"response": [limit_body]}, verify=ssl_context(), **settings)
        # The SDK sends each request in a task of its own, and continues a stream that ended in that same task.
        self._exchanges: weakref.WeakKeyDictionary[asyncio.Task[Any], _Exchange] = weakref.WeakKeyDictionary()
        self._next_stream = 0.0

    async def send(self, request: httpx2.Request, *, stream: bool = False, **more: Any) -> httpx2.Response:
        await request.aread()  # one that follows a redirect has not been read
        exchange = self._exchange_of(request)
        try:
            if exchange is None:
                async with asyncio.timeout(BRIEF_SECONDS):
                    response = await self._send_guarded(request, _Exchange(None), **more)
            else:
                if request.method == "GET":
                    await asyncio.sleep(self._next_stream - time.monotonic())
                    self._next_stream = time.monotonic() + STREAM_SECONDS
                async with exchange.waiting():
                    response = await self._send_guarded(request, exchange, **more)
        except _Cancelled as cancelled:
            content = b"data: " + cancelled.answer + b"\n\n"
            response = httpx2.Response(200, headers={"content-type": EVENTS}, content=content, request=request)
        except ConsentRequired as required:
            response = _error_response(request, CONSENT + required.url, str(required), 503)
        except (OAuthFlowError, OAuthTokenError) as error:
            logger.warning("MCP server at %s: no access token: %s", request.url.host, error)
            response = _error_response(request, UNREACHABLE, f"no access token: {error}", 503)
        except (httpx2.RequestError, TimeoutError) as error:
            if request.method == "GET":
                raise
            response = _error_response(request, UNREACHABLE, str(error) or type(error).__name__, 503)
        if not stream:
            await response.aread()
        return response

    def _exchange_of(self, request: httpx2.Request) -> _Exchange | None:
        """Return the exchange that a request belongs to; None if no answer is awaited. The notification of a
        cancellation ends the exchange that it names."""
        task = asyncio.current_task()
        assert task is not None
        if request.method == "GET":
            return self._exchanges.get(task) or _Exchange(None)
        head = _head_of(request.content)
        if head.method is not None and head.id is not None:
            return self._exchanges.setdefault(task, _Exchange(head.id))
        if head.method == "notifications/cancelled" and head.params is not None:
            for each in list(self._exchanges.values()):
                if each.id == head.params.request_id:
                    each.cancel()
        return None

    async def _send_guarded(self, request: httpx2.Request, exchange: _Exchange, **more: Any) -> httpx2.Response:
        response = await super().send(request, stream=True, **more)
        if response.has_redirect_location:
            return response
        if response.is_success:
            body = _Body(response, exchange)
            return httpx2.Response(response.status_code, headers=_headers(response), stream=body, request=request)
        # 404, as in the protocol, or 400 with the word "session", as in the examples of the TypeScript SDK.
        content = b""
        with contextlib.suppress(httpx2.StreamError):
            content = await _read(response)
        await response.aclose()
        unknown = response.status_code == 404 or (response.status_code == 400 and b"session" in content.lower())
        if request.method == "POST" and MCP_SESSION_ID in request.headers and unknown:
            return _error_response(request, EXPIRED, "The session has ended.", 404)
        return httpx2.Response(response.status_code, headers=_headers(response), content=content, request=request)


class _Params(msgspec.Struct, rename="camel"):
    request_id: int | str | None = None


class _Head(msgspec.Struct):
    """The fields of a JSON-RPC message that tell what it is."""

    id: int | str | None = None
    method: str | None = None
    params: _Params | None = None


def _head_of(message: bytes) -> _Head:
    try:
        return msgspec.json.decode(message, type=_Head)
    except (msgspec.DecodeError, RecursionError):
        return _Head()


class _Cancelled(Exception):
    """The request was cancelled. answer: what the SDK reads in place of the server's answer."""

    def __init__(self, id: int | str | None) -> None:
        super().__init__("cancelled")
        error = {"code": -32800, "message": "The request was cancelled."}
        self.answer = msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": error})


class _Exchange:
    """A request and its answer, which may come in several streams. id: None if it cannot be cancelled.

    The SDK only tells a server that a request is cancelled, and reads on: a stream that is kept open with comments
    would take a connection for as long as the session lasts, and a few of them all that there are.
    """

    def __init__(self, id: int | str | None) -> None:
        self.id = id
        self._is_cancelled = False
        self._wait: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Wait for the server in this context. Raises _Cancelled as soon as the request is cancelled."""
        if self._is_cancelled:
            raise _Cancelled(self.id)
        try:
            async with asyncio.timeout(None) as self._wait:
                yield
        except TimeoutError:
            if self._is_cancelled:
                raise _Cancelled(self.id) from None
            raise
        finally:
            self._wait = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._wait is not None:
            self._wait.reschedule(0.0)


# ---- bodies ---------------------------------------------------------------------------------------------------------


def _headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers of a response whose body is already decoded."""
    about_bytes = ("content-encoding", "content-length", "transfer-encoding")
    return [(name, value) for name, value in response.headers.multi_items() if name.lower() not in about_bytes]


async def _read(response: httpx2.Response) -> bytes:
    """Return the body. Raises StreamError if it is too large or cut off."""
    try:
        return b"".join([chunk async for chunk in response.aiter_bytes()])
    except httpx2.RequestError as error:
        raise httpx2.StreamError(f"The answer was cut off: {error}") from error


def _error_response(request: httpx2.Request, data: str, reason: str, status: int) -> httpx2.Response:
    """Return the response that replaces a missing answer."""
    error = {"code": -32000, "message": reason[:300], "data": data}
    message = {"jsonrpc": "2.0", "id": _head_of(request.content).id, "error": error}
    return httpx2.Response(status, json=message, request=request)


class _Body(httpx2.AsyncByteStream):
    """The body of an answer: one message, or a stream of events with one message each."""

    def __init__(self, response: httpx2.Response, exchange: _Exchange) -> None:
        self._response = response
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        streams = has_events(self._response)
        pieces = _events(self._response.aiter_bytes()) if streams else self._answer()
        async with contextlib.aclosing(pieces):
            try:
                while True:
                    async with self._exchange.waiting():
                        piece = await anext(pieces, None)
                    if piece is None:
                        return
                    yield piece
            except _Cancelled as cancelled:
                yield b"data: " + cancelled.answer + b"\n\n" if streams else cancelled.answer

    async def _answer(self) -> AsyncGenerator[bytes]:
        """Yield the one message, repaired, with the id of its request, which the server answers with it anyway."""
        body = await _read(self._response)
        with contextlib.suppress(ValueError):  # the SDK refuses it otherwise
            messages = [repair_message(each) for each in messages_in(body)]
            body = next((each for each in messages if _head_of(each).method is None), messages[0])
            head = _head_of(body)
            if head.method is None and head.id != self._exchange.id and self._exchange.id is not None:
                body = json.dumps({**json.loads(body), "id": self._exchange.id}).encode()
        yield body

    async def aclose(self) -> None:
        await self._response.aclose()


_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield server-sent events with repaired data; events whose data is not a message are dropped."""
    buffer = bytearray()
    async for chunk in chunks:
        looked = max(0, len(buffer) - 3)
        buffer += chunk
        while (end := _EVENT_END.search(buffer, looked)) is not None:
            for event in _repair_event(bytes(buffer[: end.start()])):
                yield event
            del buffer[: end.end()]
            looked = 0
        if len(buffer) > MESSAGE_BYTES:
            raise httpx2.StreamError(f"An event has more than {MESSAGE_BYTES} bytes.")


def _repair_event(event: bytes) -> list[bytes]:
    """Return an event with a message that the SDK can read, or one for each message of a batch."""
    lines = event.splitlines()
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    others = [line for line in lines if not line.startswith(b"data:")]
    if not data.strip():
        return [b"\n".join([*others, *([b"data:"] if len(others) < len(lines) else [])]) + b"\n\n"]
    try:
        messages = [repair_message(each) for each in messages_in(data)]
    except ValueError:
        logger.debug("an event of an MCP server is not a message: %s", printable(data))
        return []
    return [
        b"\n".join([*others, b"data: " + each.replace(b"\n", b" ").replace(b"\r", b" ")]) + b"\n\n" for each in messages
    ]
