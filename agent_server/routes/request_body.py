"""The one way in: a body read under a limit, and parsed where it does not hold up other requests.

The framework's own body parsing is not used: it reads without a limit and validates on the event loop without stopping
at the first error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.requests import Request

from adapters.errors import RequestError

if TYPE_CHECKING:
    from agent_server.server import Server

P = ParamSpec("P")
T = TypeVar("T")
LARGE = 64 * 1024
"""Bytes from which on parsing takes longer than handing it to a thread."""
PARSERS = 2
"""Large bodies that are parsed at once. More would not be faster, since each thread needs the interpreter's lock, and
the event loop would wait for the lock behind all of them."""
_parsers = ThreadPoolExecutor(PARSERS, thread_name_prefix="parse")


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


async def read_run_body(server: Server, request: Request) -> bytes:
    """The raw body of a request that starts a run.

    Where the server has no place for the run, it is refused with what `RunManager.start` would raise: before the body
    is read, and once more before it is parsed, since a client may take its time to send one.
    """
    server.runs.check_room(request.state.tenant)
    body = await read_body(request, server.settings.http.max_body)
    server.runs.check_room(request.state.tenant)
    return body


async def read_request(server: Server, request: Request, parse: Callable[[bytes], T], *, starts_run: bool = True) -> T:
    """Read the body and parse it. Raises RequestError, for a run without a place before anything is read."""
    if starts_run:
        body = await read_run_body(server, request)
    else:
        body = await read_body(request, server.settings.http.max_body)
    return await parse_beside(len(body), parse, body)


async def parse_beside(size: int, parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `parse`, in a thread where `size`, its input's bytes, is large: no other request waits for it."""
    if size <= LARGE:
        return parse(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_parsers, partial(parse, *args, **kwargs))
