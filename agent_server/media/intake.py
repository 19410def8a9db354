"""The pictures of one request, from its content parts."""

from __future__ import annotations

from collections.abc import Sequence

from ag_ui.core import ImagePart

from agent_server.engine.protocol import Picture
from agent_server.media.decoding import Decoder
from agent_server.media.fetching import Fetcher
from agent_server.media.refusal import Refused
from agent_server.media.sources import read_source
from agent_server.settings import MediaLimits


class Intake:
    """One for a server. `fetcher` and `decoder` are made by the limits unless given."""

    def __init__(
        self, limits: MediaLimits | None = None, *, fetcher: Fetcher | None = None, decoder: Decoder | None = None
    ) -> None:
        self.limits = limits = limits or MediaLimits()
        self._fetcher = fetcher or Fetcher(limits)
        self._decoder = decoder or Decoder(limits)

    async def pictures(self, parts: Sequence[ImagePart]) -> tuple[Picture, ...]:
        """In the order of the parts. Raises Refused, which names the part by its number among the pictures."""
        most = self.limits.pictures
        if len(parts) > most:
            raise Refused(f"The conversation has {len(parts)} pictures; at most {most} are taken.")
        taken: list[Picture] = []
        left = self.limits.pixels
        for number, part in enumerate(parts, 1):
            try:
                data = await read_source(part.source, self._fetcher, self.limits)
                picture = await self._decoder.decode(data, left)
            except Refused as reason:
                raise Refused(f"Picture {number} of {len(parts)} is not taken: {reason.message}") from reason
            left -= picture.width * picture.height
            taken.append(picture)
        return tuple(taken)

    async def close(self) -> None:
        await self._decoder.close()
