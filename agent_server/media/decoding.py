"""Encoded pictures → pixels, PDFs → text and pictures, sound → samples, in processes that are killed when they take too
long and replaced when they crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent_server.engine_protocol.protocol import SOUND_RATE, Picture
from agent_server.fair_slots import FairSlots
from agent_server.media.decoder_child import ANSWER, REQUEST, SIZE
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits

CHILD = Path(__file__).with_name("decoder_child.py")
MEMORY = 2**30
"""Memory limit of a process: a picture of the maximum size takes a third of it, twice."""
PROCESSES = 2
CHARACTER_BYTES = 4
DIGEST_BYTES = 16
LENGTH_BYTES = 4


class DecoderProcesses:
    """The processes that decode one kind of file, at most PROCESSES at once, started on demand. Belongs to one event
    loop. kind: of `decoder_child`. noun: the name of a file in errors. tenant: returns whose file is decoded."""

    def __init__(self, kind: str, noun: str, limits: MediaLimits, memory: int, tenant: Callable[[], str]) -> None:
        self._kind = kind
        self._noun = noun
        self._limits = limits
        self._memory = memory
        self._tenant = tenant
        self._idle: list[Process] = []
        self._slots = FairSlots(PROCESSES)

    async def ask(self, data: bytes, most: int, more: int = 0) -> memoryview:
        """Decode a file within two bounds. Raises MediaRefused."""
        async with self._slots.hold(self._tenant()):
            process = await self._take()
            assert process.stdin is not None and process.stdout is not None
            try:
                async with asyncio.timeout(self._limits.seconds):
                    process.stdin.write(REQUEST.pack(len(data), most, more))
                    process.stdin.write(data)
                    await process.stdin.drain()
                    status, length = ANSWER.unpack(await process.stdout.readexactly(ANSWER.size))
                    body = await process.stdout.readexactly(length)
            except BaseException as error:
                await _end(process)
                if isinstance(error, TimeoutError):
                    seconds = self._limits.seconds
                    raise MediaRefused(f"The {self._noun} could not be decoded within {seconds:g} seconds.") from None
                if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                    raise MediaRefused(f"The {self._noun} cannot be decoded: it crashed the decoder.") from None
                raise
            self._idle.append(process)
            if status:
                raise MediaRefused(f"The {self._noun} {body.decode('utf-8', 'replace')}.")
            return memoryview(body)

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        # The child gets nothing else of the server's environment, which has secrets, and -I keeps it from importing
        # from the current folder.
        env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
        command = (sys.executable, "-I", str(CHILD), str(self._memory), self._kind)
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=env)

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())


class Pages(NamedTuple):
    """The content of a PDF. texts: of all pages. pictures: of the first pages."""

    texts: list[str]
    pictures: list[Picture]

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        letters = sum(len(text) for text in self.texts) * CHARACTER_BYTES
        return letters + sum(len(picture.pixels) for picture in self.pictures)


class Decoder:
    """The decoders of all kinds of files. tenant: returns whose file is decoded; tenants get the processes in turn."""

    def __init__(self, limits: MediaLimits, *, memory: int = MEMORY, tenant: Callable[[], str] = str) -> None:
        self.pictures = DecoderProcesses("picture", "picture", limits, memory, tenant)
        self.documents = DecoderProcesses("document", "PDF", limits, memory, tenant)
        self.sounds = DecoderProcesses("sound", "recording", limits, memory, tenant)

    async def decode(self, data: bytes, pixels: int) -> Picture:
        """Decode a picture of at most `pixels` pixels. Raises MediaRefused."""
        return _picture(await self.pictures.ask(data, pixels))[0]

    async def pages(self, data: bytes, most: int, drawn: int) -> Pages:
        """Read a PDF of at most `most` pages, with pictures of the first `drawn`. Raises MediaRefused."""
        body = await self.documents.ask(data, most, drawn)
        length = int.from_bytes(body[:LENGTH_BYTES], "little")
        texts: list[str] = json.loads(bytes(body[LENGTH_BYTES : LENGTH_BYTES + length]))
        rest = body[LENGTH_BYTES + length :]
        pictures: list[Picture] = []
        while rest:
            picture, rest = _picture(rest)
            pictures.append(picture)
        return Pages(texts, pictures)

    async def sound(self, data: bytes, seconds: int, rate: int = SOUND_RATE) -> bytes:
        """Decode a recording of at most `seconds` seconds to samples, see `sound_decoder`. Raises MediaRefused."""
        return bytes(await self.sounds.ask(data, seconds, rate))

    async def close(self) -> None:
        for children in (self.pictures, self.documents, self.sounds):
            await children.close()


def _picture(frame: memoryview) -> tuple[Picture, memoryview]:
    """Return the picture at the start of a frame, and the rest."""
    width, height = SIZE.unpack_from(frame)
    begin = SIZE.size + DIGEST_BYTES
    end = begin + 3 * width * height
    digest = bytes(frame[SIZE.size : begin])
    return Picture(width=width, height=height, digest=digest, pixels=bytes(frame[begin:end])), frame[end:]


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    transport = getattr(process, "_transport", None)
    if transport is not None:  # close its pipes now, not at garbage collection
        transport.close()
