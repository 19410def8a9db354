"""Times and bounds of sharing."""

from __future__ import annotations

import msgspec


class SharingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes.

    lease: a gateway that has not renewed its lease for so long is dead. tick: how long events may wait to be sent
    together. answer: how long another gateway may take to obey. run: how long a run may go on; its keys live no
    longer. replay: how long a finished run is kept. bytes: of one run's events; entry: of one stream entry, and
    round: of one round trip.
    """

    lease: float = 6.0
    tick: float = 0.025
    answer: float = 5.0
    run: float = 3600.0
    replay: float = 600.0
    bytes: int = 8 * 2**20
    entry: int = 32 * 2**10
    entry_events: int = 256
    round: int = 2**20
    commands: int = 4096

    @property
    def beat(self) -> float:
        """Between two renewals of the lease."""
        return self.lease / 4
