"""The media of one request, from its content parts."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from hashlib import blake2b
from typing import Self

from ag_ui.core import AudioPart, ImagePart, Message

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, Picture, Sound
from agent_server.media.decoding import Decoder
from agent_server.media.documents import Documents, PagePicture
from agent_server.media.fetching import Fetcher, read_source
from agent_server.media.refusal import Refused
from agent_server.settings import MediaLimits

SAMPLE_BYTES = 2


class Held:
    """What one request has decoded, until the end of the block that it is held for; see `Intake.hold`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._intake.held -= self.bytes

    def add(self, size: int) -> None:
        """Raises EngineError("overloaded") where all requests together would hold too much."""
        if self._intake.held + size > self._intake.limits.held_bytes:
            message = "Other requests hold the memory that is set aside for decoded media; try again."
            raise EngineError("overloaded", message, retryable=True)
        self.bytes += size
        self._intake.held += size


class Intake:
    """One for a server. `fetcher` and `decoder` are made by the limits unless given. held: bytes of decoded media that
    requests have now."""

    def __init__(
        self, limits: MediaLimits | None = None, *, fetcher: Fetcher | None = None, decoder: Decoder | None = None
    ) -> None:
        self.limits = limits = limits or MediaLimits()
        self.held = 0
        self._fetcher = fetcher or Fetcher(limits)
        self._decoder = decoder or Decoder(limits)
        self._documents = Documents(limits, self._fetcher, self._decoder)

    def hold(self) -> Held:
        """Around all that a request does with its media: what it has decoded counts until the end of the block."""
        return Held(self)

    async def documents(self, messages: Sequence[Message], *, sees: bool) -> list[Message]:
        """The messages with text in place of documents, and with pictures of their pages where the model sees. Raises
        Refused."""
        return await self._documents.read(messages, sees=sees)

    async def texts(self, messages: Sequence[Message]) -> list[Message]:
        """As `documents`, for whoever reads texts alone: a PDF without text is no fault there. Raises Refused."""
        return await self._documents.read(messages, sees=False, blank=True)

    async def pictures(self, parts: Sequence[ImagePart], held: Held) -> tuple[Picture, ...]:
        """In the order of the parts. Raises Refused, which names the part by its number among the pictures, and what
        `Held.add` raises."""
        most = self.limits.pictures
        if len(parts) > most:
            raise Refused(f"The conversation has {len(parts)} pictures; at most {most} are taken.")
        taken: list[Picture] = []
        left = self.limits.pixels
        for number, part in enumerate(parts, 1):
            try:
                picture = await self._picture(part, left)
            except Refused as reason:
                raise Refused(f"Picture {number} of {len(parts)} is not taken: {reason.message}") from reason
            held.add(len(picture.pixels))
            left -= picture.width * picture.height
            taken.append(picture)
        return tuple(taken)

    async def _picture(self, part: ImagePart, pixels: int) -> Picture:
        if not isinstance(part, PagePicture):
            data = await read_source(part.source, self._fetcher, self.limits)
            return await self._decoder.decode(data, pixels)
        size = part.picture.width * part.picture.height
        if size > pixels:
            raise Refused(f"The page's picture has {size} pixels, and {pixels} are left for it.")
        return part.picture

    async def sounds(self, parts: Sequence[AudioPart], info: EngineInfo, held: Held) -> tuple[Sound, ...]:
        """In the order of the parts, as the engine wants them. Raises as `pictures` does."""
        if len(parts) > self.limits.sounds:
            raise Refused(f"The conversation has {len(parts)} sounds; at most {self.limits.sounds} are taken.")
        taken: list[Sound] = []
        left = float(self.limits.sound_seconds)
        for number, part in enumerate(parts, 1):
            try:
                sound = await self._sound(part, int(left), info)
            except Refused as reason:
                raise Refused(f"Sound {number} of {len(parts)} is not taken: {reason.message}") from reason
            held.add(len(sound.samples))
            left -= len(sound.samples) / SAMPLE_BYTES / sound.rate
            taken.append(sound)
        return tuple(taken)

    async def _sound(self, part: AudioPart, left: int, info: EngineInfo) -> Sound:
        if importlib.util.find_spec("av") is None:
            raise Refused("This server decodes no sounds; its operator installs 'agent-server[audio]'.")
        if not left:
            raise Refused(f"All sounds of a request together may have {self.limits.sound_seconds} seconds.")
        data = await read_source(part.source, self._fetcher, self.limits)
        samples = await self._decoder.sound(data, min(left, info.sound_seconds or left), info.sound_rate)
        digest = await asyncio.to_thread(blake2b, b"%d:" % info.sound_rate + samples, digest_size=16)
        return Sound(samples=samples, rate=info.sound_rate, digest=digest.digest())

    async def close(self) -> None:
        await self._decoder.close()
