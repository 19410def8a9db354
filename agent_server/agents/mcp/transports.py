"""The transports to MCP servers, stdio and streamable HTTP, with size limits and repairs (see `repairs`).

The stdio transport is our own: the SDK's reads lines of any length and ends at the first byte that is not UTF-8. For
streamable HTTP, the SDK's transport uses the HTTP client in `guarded_client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import anyio
import httpx2
import msgspec
from anyio.abc import Process
from mcp.client import Transport
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.os.win32.utilities import get_windows_executable_command
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from agent_server.agents.mcp.consent import UserTokens
from agent_server.agents.mcp.guarded_client import GuardedClient
from agent_server.agents.mcp.mcp_server import ClientCredentials, McpServer
from agent_server.agents.mcp.repairs import (
    LOG_LINE,
    MESSAGE_BYTES,
    messages_in,
    printable,
    repair_message,
    repair_result,
    request_id,
)
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.user import User

logger = logging.getLogger("agent_server.mcp")
Streams = tuple[Any, Any]
MESSAGES_AT_ONCE, PAUSE_SECONDS = 200, 0.1
"""After this number of notifications and requests within PAUSE_SECONDS, reading pauses for as long."""
EXIT_SECONDS = 2.0
"""How long a server may take to exit after its stdin is closed, and again between SIGTERM and SIGKILL."""
FLUSH_SECONDS = 0.5
LOG_BYTES, LOG_SECONDS = 16 * 2**10, 60.0
"""The bytes of a server's stderr that are logged per LOG_SECONDS."""
UNREADABLE = "The answer cannot be read."


# ---- both -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def repaired(transport: Transport, ended: asyncio.Event) -> AsyncGenerator[Streams]:
    """Wrap a transport to repair its results. ended: set when the server's messages end."""
    async with transport as (read, write):
        methods: dict[int | str, str] = {}
        yield _Reader(read, methods, ended), _Writer(write, methods)


class _Writer:
    """Records the method of each request."""

    def __init__(self, inner: Any, methods: dict[int | str, str]) -> None:
        self._inner = inner
        self._methods = methods

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._methods[message.id] = message.method
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._methods.pop((message.params or {}).get("requestId", ""), None)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Writer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Reader:
    """Repairs results, and pauses reading if a server sends too many messages."""

    def __init__(self, inner: Any, methods: dict[int | str, str], ended: asyncio.Event) -> None:
        self._inner = inner
        self._methods = methods
        self._ended = ended
        self._version = LATEST_HANDSHAKE_VERSION
        self._since, self._unasked = 0.0, 0

    @property
    def last_context(self) -> contextvars.Context | None:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except BaseException:
            self._ended.set()
            raise
        if isinstance(item, Exception):
            return item
        message = item.message
        if (
            isinstance(message, JSONRPCResponse)
            and (method := self._methods.pop(_normalized_id(message.id), None)) is not None
        ):
            # A listing may be large, and each of its tools is checked.
            if method == "tools/list":
                message.result = await REQUEST_THREADS.run(repair_result, method, self._version, message.result)
            else:
                message.result = repair_result(method, self._version, message.result)
            if method == "initialize":
                self._version = str(message.result.get("protocolVersion", self._version))
            elif method == "server/discover":
                self._version = LATEST_MODERN_VERSION
        elif isinstance(message, JSONRPCError):
            self._methods.pop(_normalized_id(message.id), None)
        else:
            now = time.monotonic()
            if now - self._since > PAUSE_SECONDS:
                self._since, self._unasked = now, 0
            self._unasked += 1
            if self._unasked >= MESSAGES_AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)
        return item

    async def aclose(self) -> None:
        self._ended.set()
        await self._inner.aclose()

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _normalized_id(id: int | str | None) -> int | str:
    """Return a response's id as the request had it; some servers turn a number into text."""
    return int(id) if isinstance(id, str) and id.isdecimal() else "" if id is None else id


# ---- stdio ----------------------------------------------------------------------------------------------------------


class ServerLog:
    """Logs a server's stderr, up to LOG_BYTES per LOG_SECONDS."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._since = clock()
        self._bytes = 0
        self._skipped = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> bool:
        """Log a chunk. Returns False if the limit is exceeded."""
        if self._clock() - self._since >= LOG_SECONDS:
            self._since, self._bytes = self._clock(), 0
            if self._skipped:
                logger.info("MCP server %s: %d bytes of its stderr were left out", self._name, self._skipped)
            self._skipped = 0
        if self._bytes > LOG_BYTES:
            self._skipped += len(chunk)
            return False
        *lines, self._rest = (self._rest + chunk[:LOG_BYTES]).split(b"\n")
        self._rest = self._rest[:LOG_LINE]
        for line in lines:
            self._bytes += len(line[:LOG_LINE]) + 1
            if self._bytes > LOG_BYTES:
                logger.info("MCP server %s: the rest of its stderr is left out for a minute", self._name)
                break
            if line.strip():
                logger.info("MCP server %s says: %s", self._name, printable(line))
        return True


@contextlib.asynccontextmanager
async def stdio(server: McpServer) -> AsyncGenerator[Streams]:
    """Start the server's program and connect to its stdin and stdout. Raises OSError or ValueError if it cannot be
    started. The program and its child processes are ended with the context."""
    program, *arguments = server.command
    if sys.platform == "win32":
        program = get_windows_executable_command(program)
    process = await anyio.open_process(
        [program, *arguments],
        env=get_default_environment() | dict(server.env),
        cwd=server.cwd,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    to_us, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_us, to_server = anyio.create_memory_object_stream[SessionMessage](0)
    flushed = anyio.Event()

    async def read() -> None:
        async with to_us:
            async for line, whole in _lines(process.stdout, MESSAGE_BYTES):
                for text in messages_in(line) if whole else (line,):
                    message = _message_in(server.name, text, whole)
                    if message is not None:
                        # If there is no reader any more, keep draining the pipe.
                        with contextlib.suppress(anyio.BrokenResourceError):
                            await to_us.send(message)

    async def write() -> None:
        assert process.stdin is not None
        try:
            async with to_server:
                async for item in to_server:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(text.encode() + b"\n")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            await to_us.aclose()  # pending requests are lost, even if the server still runs
        finally:
            flushed.set()

    async def log() -> None:
        assert process.stderr is not None
        server_log = ServerLog(server.name)
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            async for chunk in process.stderr:
                if not server_log.feed(chunk):
                    await anyio.sleep(PAUSE_SECONDS)

    async with anyio.create_task_group() as group:
        for each in (read, write, log):
            group.start_soon(each)
        try:
            yield from_server, from_us
        finally:
            with anyio.CancelScope(shield=True):
                from_server.close()
                from_us.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await flushed.wait()
                await _end_process(server.name, process)
                for stream in (to_us, to_server):
                    stream.close()
            group.cancel_scope.cancel()


async def _end_process(name: str, process: Process) -> None:
    """End a process by closing its stdin; if it does not exit, terminate it and its child processes."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    if not await _ended_within(process, EXIT_SECONDS):
        if sys.platform == "win32":
            process.terminate()
        else:
            await terminate_posix_process_tree(process, EXIT_SECONDS)
        if not await _ended_within(process, EXIT_SECONDS):
            logger.warning("MCP server %s: process %d does not end", name, process.pid)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await pipe.aclose()
    # A child process may still hold a pipe open; no public API closes our end in that case.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()


async def _ended_within(process: Process, seconds: float) -> bool:
    # Not process.wait(): it also waits for the pipes, which another process may hold open.
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return process.returncode is not None


async def _lines(stream: Any, most: int) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield the lines of a stream, and whether each is complete: a line of more than `most` bytes is truncated."""
    parts: list[bytes] = []
    size = 0
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        async for chunk in stream:
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                whole = size + len(end) <= most
                yield b"".join(parts)[: None if whole else 300] + (end if whole else b""), whole
                parts, size = [], 0
            size += len(rest)
            if size <= most:
                parts.append(rest)
            else:
                parts = [b"".join(parts)[:300]]


def _message_in(name: str, line: bytes, whole: bool) -> SessionMessage | None:
    """Return the message in a text, or an error for the request whose answer it is, if it cannot be read. None for
    other texts, such as the banners that some programs print."""
    reason = f"It has more than {MESSAGE_BYTES} bytes."
    if whole:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(repair_message(line), by_name=False))
        except ValueError as error:
            reason = str(error).partition("\n")[0]
    id = request_id(line) if line.lstrip()[:1] in (b"{", b"[") else None
    if id is None:
        logger.debug("MCP server %s: a line is not a message: %s", name, printable(line))
        return None
    logger.warning("MCP server %s: an answer cannot be read: %s", name, reason)
    unreadable = ErrorData(code=PARSE_ERROR, message=f"{UNREADABLE} {reason}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=unreadable))


# ---- streamable HTTP ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def streamable_http(server: McpServer, identity: Identity) -> AsyncGenerator[Streams]:
    """Connect to a server that is already running."""
    patience = httpx2.Timeout(30, read=300)
    auth: httpx2.Auth | None = identity.tokens
    if isinstance(server.oauth, ClientCredentials):
        credentials = server.oauth
        memory, scope = _TokenMemory(), credentials.scope or None
        if credentials.private_key:
            assertions = SignedJWTParameters(
                issuer=credentials.client_id,
                subject=credentials.client_id,
                signing_key=credentials.private_key,
                signing_algorithm=credentials.algorithm,
            )
            provider = assertions.create_assertion_provider()
            auth = PrivateKeyJWTOAuthProvider(
                server.url, memory, credentials.client_id, provider, scope, credentials.issuer
            )
        else:
            auth = ClientCredentialsOAuthProvider(
                server_url=server.url,
                storage=memory,
                client_id=credentials.client_id,
                client_secret=credentials.client_secret,
                token_endpoint_auth_method=credentials.auth_method,
                scope=scope,
                issuer=credentials.issuer,
            )
    headers = {**identity.headers, **{name.lower(): value for name, value in server.headers.items()}}
    async with GuardedClient(headers=headers, timeout=patience, auth=auth) as http:
        transport: AbstractAsyncContextManager[Streams] = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=MESSAGE_BYTES
        )
        async with transport as streams:
            yield streams


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a session. headers: those forwarded for the user. tokens: the user's. owner: distinguishes the
    sessions of different users."""

    owner: str = ""
    headers: Mapping[str, str] = {}
    tokens: UserTokens | None = None

    def is_of(self, user: User) -> bool:
        """Whether the session is this user's."""
        return bool(self.owner) and msgspec.json.decode(self.owner)[:2] == [user.tenant, user.name]


class _TokenMemory:
    """The SDK's storage for the token of one connection."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info
