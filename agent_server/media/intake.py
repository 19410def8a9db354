"""Reads the media of a request from its content parts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Self

from ag_ui.core import AudioPart, ImagePart, Message

from agent_server.bounded import BoundedCache
from agent_server.engine_protocol.protocol import EngineError, EngineInfo, Picture, Sound
from agent_server.media.decoding import Decoder
from agent_server.media.documents import Documents, PagePicture
from agent_server.media.fetching import Fetcher, digest_of, read_source
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits

SAMPLE_BYTES = 2
CACHE_BYTES = 64 * 2**20
"""Size of the cache of decoded pictures, which a client sends again with each turn."""


class MediaMemory:
    """The memory of one request's decoded media, counted until the end of the context; see `Intake.hold`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._intake.used_bytes -= self.bytes

    def add(self, size: int) -> None:
        """Count more bytes. Raises EngineError("overloaded") if all requests together would exceed the limit."""
        if self._intake.used_bytes + size > self._intake.limits.held_bytes:
            message = "Other requests use the memory for decoded media. Try again later."
            raise EngineError("overloaded", message, retryable=True)
        self.bytes += size
        self._intake.used_bytes += size


class Intake:
    """The media reader of a server. `fetcher` and `decoder` default to ones with these limits. tenant: returns whose
    request is read. used_bytes: size of the decoded media that requests use now."""

    def __init__(
        self,
        limits: MediaLimits | None = None,
        *,
        fetcher: Fetcher | None = None,
        decoder: Decoder | None = None,
        tenant: Callable[[], str] = str,
    ) -> None:
        self.limits = limits = limits or MediaLimits()
        self.used_bytes = 0
        self._fetcher = fetcher or Fetcher(limits)
        self._decoder = decoder or Decoder(limits, tenant=tenant)
        self._tenant = tenant
        self._documents = Documents(limits, self._fetcher, self._decoder, tenant)
        self._cache = BoundedCache[tuple[str, bytes], Picture](CACHE_BYTES, lambda key, picture: len(picture.pixels))

    def hold(self) -> MediaMemory:
        """Return the context in which a request uses its media. What it decodes counts until the end of the context."""
        return MediaMemory(self)

    async def documents(self, messages: Sequence[Message], *, has_vision: bool) -> list[Message]:
        """Replace documents in the messages by text, and by pictures of their pages if the model has vision. Raises
        MediaRefused."""
        return await self._documents.read(messages, has_vision=has_vision)

    async def texts(self, messages: Sequence[Message]) -> list[Message]:
        """Replace documents in the messages by text only, which may be empty. Raises MediaRefused."""
        return await self._documents.read(messages, has_vision=False, blank=True)

    async def pictures(self, parts: Sequence[ImagePart], memory: MediaMemory) -> tuple[Picture, ...]:
        """Decode pictures, in order. Raises MediaRefused, which names the picture by its number, and what
        `MediaMemory.add` raises."""
        most = self.limits.pictures
        if len(parts) > most:
            raise MediaRefused(f"The conversation has {len(parts)} pictures; the limit is {most}.")
        decoded: list[Picture] = []
        pixels_left = self.limits.pixels
        for number, part in enumerate(parts, 1):
            try:
                if isinstance(part, PagePicture):
                    picture = part.picture
                    if (size := picture.width * picture.height) > pixels_left:
                        message = f"The page's picture has {size} pixels, but only {pixels_left} are left of the limit."
                        raise MediaRefused(message)
                else:
                    picture = await self._picture(part, pixels_left)
            except MediaRefused as reason:
                raise MediaRefused(f"Picture {number} of {len(parts)} is refused: {reason.message}") from reason
            memory.add(len(picture.pixels))
            pixels_left -= picture.width * picture.height
            decoded.append(picture)
        return tuple(decoded)

    async def _picture(self, part: ImagePart, pixels_left: int) -> Picture:
        """Decode a picture, or take it from the cache of its tenant. Raises MediaRefused."""
        data = await read_source(part.source, self._fetcher, self.limits)
        key = self._tenant(), await digest_of(data)
        picture = self._cache.get(key)
        if picture is None or picture.width * picture.height > pixels_left:
            picture = await self._decoder.decode(data, pixels_left)
            self._cache.put(key, picture)
        return picture

    async def sounds(self, parts: Sequence[AudioPart], info: EngineInfo, memory: MediaMemory) -> tuple[Sound, ...]:
        """Decode sounds, in order, for the engine. Raises the same errors as `pictures`."""
        if len(parts) > self.limits.sounds:
            raise MediaRefused(f"The conversation has {len(parts)} sounds; the limit is {self.limits.sounds}.")
        decoded: list[Sound] = []
        seconds_left = float(self.limits.sound_seconds)
        for number, part in enumerate(parts, 1):
            most = int(seconds_left)
            try:
                if importlib.util.find_spec("av") is None:
                    raise MediaRefused(
                        "This server cannot decode sounds; the operator can install 'agent-server[audio]'."
                    )
                if not most:
                    raise MediaRefused(
                        f"All sounds of a request together may have {self.limits.sound_seconds} seconds."
                    )
                data = await read_source(part.source, self._fetcher, self.limits)
                samples = await self._decoder.sound(data, min(most, info.sound_seconds or most), info.sound_rate)
            except MediaRefused as reason:
                raise MediaRefused(f"Sound {number} of {len(parts)} is refused: {reason.message}") from reason
            digest = await digest_of(b"%d:" % info.sound_rate + samples)
            memory.add(len(samples))
            seconds_left -= len(samples) / SAMPLE_BYTES / info.sound_rate
            decoded.append(Sound(samples=samples, rate=info.sound_rate, digest=digest))
        return tuple(decoded)

    async def close(self) -> None:
        await self._decoder.close()
