"""A Redis, a PostgreSQL and two gateways over them, each a process of its own."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateways.redis_server import RedisServer, installed
from tests.runs.store import postgres

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip("no redis-server on this machine")
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL binaries (initdb) on this machine")
    with postgres.server() as url:
        yield url


class Process:
    """A gateway."""

    def __init__(self, store: str, redis: str, **changes: Any) -> None:
        command = [sys.executable, "-m", "tests.gateways.gateway", store, redis, json.dumps(changes)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = ""

    def ready(self) -> Process:
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the gateway did not start"
        return self

    def kill(self) -> None:
        """-9."""
        self._process.kill()
        self._release()

    def stop(self) -> None:
        """Begin to close."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        self.stop()
        self._release()

    def _release(self) -> None:
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def shared(database: str, redis: RedisServer) -> dict[str, Any]:
    """What gateways that belong together have in common."""
    return {"store": database, "redis": redis.url, "redis_prefix": secrets.token_hex(4)}


@pytest.fixture(scope="session")
def gateways(shared: dict[str, Any]) -> Iterator[tuple[Process, Process, Process, Process]]:
    """Two that stay, and two to be killed."""
    started = [Process(**shared) for _ in range(4)]
    try:
        one, two, three, four = [each.ready() for each in started]
        yield one, two, three, four
    finally:  # also where one of them did not start
        for each in started:
            each.stop()
        for each in started:
            each.close()
