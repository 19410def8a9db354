"""The one way in: a body read under a limit, and parsed where it does not hold up other requests.

The framework's own body parsing is not used: it reads without a limit and validates on the event loop without stopping
at the first error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.requests import Request

from adapters.errors import RequestError
from adapters.forwarded_props import REQUEST_KEY

if TYPE_CHECKING:
    from agent_server.http.server import Server

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
        raise RequestError("unsupported_media_type", "Bodies are not decompressed; send it without Content-Encoding.")
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
