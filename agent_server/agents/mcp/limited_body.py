"""A limit on the answers of MCP servers and of their authorization servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx2

from agent_server.agents.mcp.repairs import MESSAGE_BYTES

EVENTS = "text/event-stream"


async def limit_body(response: httpx2.Response) -> None:
    """A hook for responses: limits what a body decompresses to, since OAuth's answers are read without a limit."""
    inner = httpx2.Response(
        response.status_code, headers=response.headers, stream=response.stream, request=response.request
    )
    response.stream = _LimitedBody(inner)
    response.headers.pop("content-encoding", None)


def has_events(response: httpx2.Response) -> bool:
    """Whether a response is a stream of events."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == EVENTS


class _LimitedBody(httpx2.AsyncByteStream):
    """The decoded body. Raises RemoteProtocolError if it is too large, unless it is a stream of events."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, limit = 0, None if has_events(self._response) else MESSAGE_BYTES
        async with contextlib.aclosing(self._response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if limit is not None and size > limit:
                    raise httpx2.RemoteProtocolError(f"it has more than {limit} bytes")
                yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()
