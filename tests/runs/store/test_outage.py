"""A real PostgreSQL that is stopped and started under runs: what they end with, and how much is logged of it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator

import httpx
import pytest

from agent_server.observability.telemetry import LineFormatter, RepeatFilter
from tests.runs.store import postgres
from tests.server import scripted, serving

pytestmark = pytest.mark.skipif(
    postgres.binaries() is None and shutil.which("initdb") is None, reason="no PostgreSQL here"
)
RUNS = 60


class Log(logging.Handler):
    """The server's log as `configure_logging` writes it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
        self.addFilter(RepeatFilter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def run(http: httpx.AsyncClient, number: int, thread: str = "") -> str:
    sent = {
        "threadId": thread or f"t{number}", "runId": f"r{number}", "protocolVersion": "1.0",
        "messages": [{"id": f"u{number}", "role": "user", "content": "Hi"}],
    }  # fmt: skip
    return (await http.post("/agui", json=sent)).text.rsplit("data: ", 1)[-1]


@pytest.mark.slow  # a run waits 5 s for a database that is out of reach
async def test_an_outage_ends_runs_as_unavailable_and_is_logged_in_a_few_lines(log: Log):
    with postgres.running() as database:
        async with (
            serving(scripted("Hello."), store_url=database.url) as running,
            httpx.AsyncClient(base_url=running.url, timeout=60) as http,
        ):
            assert "RUN_FINISHED" in await run(http, 0, "kept")
            await asyncio.to_thread(database.stop)
            ended = await asyncio.gather(*(run(http, number) for number in range(1, RUNS)))
            assert {("RUN_ERROR" in end, '"code":"unavailable"' in end) for end in ended} == {(True, True)}
            assert (await http.get("/ready")).status_code == 503
            await asyncio.to_thread(database.start)
            async with asyncio.timeout(60):
                while (await http.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
            assert "RUN_FINISHED" in await run(http, RUNS, "kept")
            kept = (await http.get("/agui/threads/kept/messages")).json()
    told = [line for line in log.lines if not line.startswith("INFO")]
    assert "Traceback (most recent call last):" not in log.lines and len(told) <= 6, "\n".join(told)
    assert any("cannot be used: it cannot be reached" in line for line in told)
    assert any("can be used again" in line for line in told)
    assert len(kept["messages"] if isinstance(kept, dict) else kept) == 4
