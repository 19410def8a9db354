"""The operator's settings for replicas."""

from __future__ import annotations

import msgspec


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    in_flight: generations that one replica gets at a time. queued: generations that may wait while every replica has
    that many; more are refused. wait: how long a generation waits while no replica can be used. check: between two
    checks of the replicas. idle: the longest silence between two items of a stream. first_token: the longest silence
    before the first item, longer because an engine has a queue of its own. A paused generation may be silent. resume:
    whether a generation continues on another replica after its first token. attempts: the most attempts of one
    generation, so that a request that crashes engines does not reach all of them.
    failures: in a row, after which a replica gets no generations for `cooldown`, which doubles up to
    `longest_cooldown`. affinity: how many generations in flight a wholly cached prompt outweighs. prefixes: blocks
    remembered for that.
    """

    in_flight: int = 1024
    queued: int = 1024
    wait: float = 10.0
    check: float = 1.0
    idle: float = 45.0
    first_token: float = 450.0
    resume: bool = True
    attempts: int = 4
    failures: int = 3
    cooldown: float = 1.0
    longest_cooldown: float = 30.0
    affinity: float = 4.0
    prefixes: int = 100_000
