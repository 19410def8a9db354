"""A remote agent that speaks AG-UI over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import aiohttp
import msgspec

from agent_server.agents.guests.guest import GuestInput
from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.transport import FrameError, FrameSplitter
from agent_server.observability.audit import note
from agent_server.user import NOTHING, Forward, current_user

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 300.0
READ_BYTES = 2**16
TERMINAL = ("RUN_FINISHED", "RUN_ERROR")
STREAM = "text/event-stream"


class RemoteAgent:
    """An agent at a URL that speaks AG-UI.

    A run is sent once, except to a peer older than AG-UI 1.0 that refused fields it does not know.

    Args:
        url: Where runs are posted.
        name: How this server's clients address it; "" takes the name that `--agent` gives.
        description: The agent's purpose.
        headers: Headers of every request, such as an API key.
        forward: Headers and claims of the client's request to send with its run; none by default.
        connect: Timeout for connecting, in seconds.
        idle: Timeout between two bytes of the answer, in seconds.
    """

    kind = "ag-ui"
    errors_for_clients = False
    partial_snapshots = False

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        description: str = "",
        headers: Mapping[str, str] | None = None,
        forward: Forward = NOTHING,
        connect: float = CONNECT_SECONDS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self.url = url
        self.name = name
        self.description = description
        self._headers = {"Accept": STREAM, "Content-Type": "application/json", **(headers or {})}
        self._forward = forward
        self._own_names = {name.lower() for name in self._headers}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=idle)
        self._session: aiohttp.ClientSession | None = None
        self._is_old_peer = False

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        """Yield the agent's events. Raises EngineError if the agent cannot be reached, refuses, or disconnects."""
        try:
            response = await self._send(input, old=self._is_old_peer)
            if response.status == 422 and not self._is_old_peer and not input.resume:
                response.close()
                response = await self._send(input, old=True)
                self._is_old_peer = response.status == 200
            async with response:
                if response.status != 200:
                    busy = response.status in (429, 503)
                    raise EngineError(
                        "overloaded" if busy else "connection",
                        f"The remote agent answered with status {response.status}.",
                        retryable=busy,
                    )
                if response.content_type != STREAM:
                    raise EngineError(
                        "connection", f"The remote agent answered with {response.content_type}, not {STREAM}."
                    )
                async for event in self._events(response):
                    yield event
                    if event.get("type") in TERMINAL:
                        return
        except TimeoutError as error:
            raise EngineError("timeout", "The remote agent sent nothing for too long.", retryable=True) from error
        except (aiohttp.ClientError, OSError, FrameError) as error:
            raise EngineError("connection", "The connection to the remote agent failed.", retryable=True) from error
        raise EngineError("connection", "The remote agent's answer ended without the end of the run.")

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def _send(self, input: GuestInput, *, old: bool) -> aiohttp.ClientResponse:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False, headers=self._headers)
        data = msgspec.json.encode(body_of(input, old=old))
        user = current_user.get()
        headers = {name: each for name, each in self._forward.headers_for(user).items() if name not in self._own_names}
        if headers:
            note("identity.forwarded", target=f"agent:{self.name or self.url}", user=user.name, headers=sorted(headers))
        return await self._session.post(
            self.url, data=data, timeout=self._timeout, allow_redirects=False, headers=headers
        )

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, object]]:
        frames = FrameSplitter()
        async for chunk in response.content.iter_chunked(READ_BYTES):
            for data in frames.feed(chunk):
                try:
                    event = msgspec.json.decode(data)
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event


def body_of(input: GuestInput, *, old: bool = False) -> dict[str, object]:
    """The request body of a run. old: for a peer that knows neither `protocolVersion` nor `resume`."""
    body: dict[str, object] = input.plain().model_dump(mode="json", by_alias=True)
    body = {"state": {}, "forwardedProps": {}, "tools": [], "context": [], **body}
    if old:
        body.pop("protocolVersion", None)
        body.pop("resume", None)
    return body
