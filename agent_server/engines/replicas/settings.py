"""What an operator can set about replicas."""

from __future__ import annotations

import msgspec


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    in_flight: generations that one replica is given at a time. queued: generations that wait when every replica has
    that many; beyond it they are refused. wait: how long a generation waits for a replica while there is none at all.
    check: between two looks at the replicas. idle: the longest silence between two items of a stream, first_token:
    before its first one (a full replica has a queue of its own); a pause is no silence. resume: whether a generation
    that lost its replica in the middle goes on elsewhere. attempts: how many replicas one generation may lose, and
    one more; what kills every engine that it meets must not meet them all.
    failures: in a row, until a replica is left alone for `cooldown`, which doubles up to `longest_cooldown`.
    affinity: generations in flight that a wholly cached prompt is worth. prefixes: blocks remembered for that.
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
