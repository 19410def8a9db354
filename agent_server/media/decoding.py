"""Encoded pictures → pixels, by processes that are killed when they take too long and replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from agent_server.engine.protocol import Picture
from agent_server.media.decoder_child import ANSWER, REQUEST, SIZE
from agent_server.media.refusal import Refused
from agent_server.settings import MediaLimits

CHILD = Path(__file__).with_name("decoder_child.py")
MEMORY = 2**30
"""Of a process: a picture of the most pixels takes a third of it, twice."""
PROCESSES = 2
DIGEST_BYTES = 16


class Decoder:
    """Starts no process before the first picture. One for each event loop."""

    def __init__(self, limits: MediaLimits, *, memory: int = MEMORY) -> None:
        self._limits = limits
        self._memory = memory
        self._idle: list[Process] = []
        self._turn = asyncio.Semaphore(PROCESSES)

    async def decode(self, data: bytes, pixels: int) -> Picture:
        """A picture of at most so many pixels. Raises Refused."""
        async with self._turn:
            process = await self._take()
            try:
                async with asyncio.timeout(self._limits.seconds):
                    picture = await _ask(process, data, pixels)
            except BaseException as error:
                await _end(process)
                if isinstance(error, TimeoutError):
                    seconds = self._limits.seconds
                    raise Refused(f"The picture could not be decoded within {seconds:g} seconds.") from None
                if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                    raise Refused("The picture cannot be decoded: its decoder died of it.") from None
                raise
            self._idle.append(process)
            if isinstance(picture, str):
                raise Refused(f"The picture {picture}.")
            return picture

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        # Nothing of this server's environment: it holds keys. -I: nor of the folder that it was started in.
        kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(CHILD), str(self._memory), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=kept
        )

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())


async def _ask(process: Process, data: bytes, pixels: int) -> Picture | str:
    """The picture, or half a sentence about it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(REQUEST.pack(len(data), pixels))
    process.stdin.write(data)
    await process.stdin.drain()
    status, length = ANSWER.unpack(await process.stdout.readexactly(ANSWER.size))
    body = await process.stdout.readexactly(length)
    if status:
        return body.decode("utf-8", "replace")
    width, height = SIZE.unpack_from(body)
    rest = memoryview(body)[SIZE.size :]
    return Picture(width=width, height=height, digest=bytes(rest[:DIGEST_BYTES]), pixels=bytes(rest[DIGEST_BYTES:]))


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:  # its pipes, which the loop would otherwise close when it is collected
        transport.close()
