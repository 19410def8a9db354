"""What things are called in Redis. All names carry one hash tag, so that a script may touch several of them."""

from __future__ import annotations

from urllib.parse import quote

import msgspec


class RunPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where one run is: the gateway that has it, its names, and the instance that tells a reused id apart.

    Encoded, it is the run's entry in its thread's queue and in its gateway's set of runs.
    """

    gateway: str
    tenant: str
    run_id: str
    thread_id: str
    instance: str

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)


def place_of(entry: bytes) -> RunPlace:
    return msgspec.json.decode(entry, type=RunPlace)


class RedisKeys:
    """The names below one prefix; servers that share a Redis without sharing runs have different prefixes."""

    def __init__(self, prefix: str) -> None:
        self._base = "{" + prefix + "}:"
        self.gateways = self._base + "gateways"
        self.control_base = self._base + "control:"

    def lease(self, gateway: str) -> str:
        """Lives as long as the gateway renews it."""
        return f"{self._base}lease:{gateway}"

    def runs(self, gateway: str) -> str:
        """The set of the gateway's runs that go on."""
        return f"{self._base}runs:{gateway}"

    def control(self, gateway: str) -> str:
        """The stream of what others want of the gateway, and of what they answered."""
        return self.control_base + gateway

    def record(self, tenant: str, run_id: str) -> str:
        """The hash that says where a run is and how it began."""
        return f"{self._base}run:{quote(tenant, '')}:{quote(run_id, '')}"

    def events(self, place: RunPlace) -> str:
        """The stream of a run's events."""
        return f"{self._base}events:{quote(place.tenant, '')}:{quote(place.run_id, '')}:{place.instance}"

    def thread(self, tenant: str, thread_id: str) -> str:
        """The queue of a thread: the run whose turn it is, then those that wait."""
        return f"{self._base}thread:{quote(tenant, '')}:{quote(thread_id, '')}"
