"""The log tells every kind of trouble, and is not flooded by it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from agent_server.observability.telemetry import (
    IdFilter,
    JsonFormatter,
    LineFormatter,
    RepeatFilter,
    configure_logging,
    note_ids,
)
from tests.server import scripted, serving


def record(message: str, *given: Any, level: int = logging.ERROR, error: BaseException | None = None) -> Any:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("agent_server", level, __file__, 1, message, given, info)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


class Log:
    """Records through the filter and the formatter, under a clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._filter = RepeatFilter(lambda: self.now)
        self._formatter = LineFormatter("%(message)s")

    def say(self, *given: Any, **more: Any) -> None:
        made = record(*given, **more)
        if self._filter.filter(made):
            self.lines.append(self._formatter.format(made))


def test_what_is_said_again_and_again_is_said_a_few_times_and_counted():
    log = Log()
    for number in range(247):
        log.say("the store failed for %s", number)
    assert log.lines == [f"the store failed for {number}" for number in range(5)]
    log.now = 10.0
    log.say("the store failed for %s", "x")
    log.say("the store failed for %s", "y")
    assert log.lines[5:] == ["the store failed for x (242 like it were left out)", "the store failed for y"]


def test_other_messages_other_errors_and_mere_information_are_not_held_back():
    log = Log()
    for _ in range(20):
        log.say("one")
        log.say("one", error=ValueError())
        log.say("other", level=logging.WARNING)
        log.say("told", level=logging.INFO)
    assert [sum(line.startswith(word) for line in log.lines) for word in ("one", "other", "told")] == [10, 5, 20]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connect call failed"),
        TimeoutError("late"),
        OperationalError("SELECT secret\nFROM t", {}, Exception("server closed the connection\nat once")),
    ],
)
def test_an_outage_is_one_line(error: Exception):
    log = Log()
    log.say("the store failed", error=raised(error))
    assert len(log.lines) == 1 and "\n" not in log.lines[0] and "secret" not in log.lines[0]
    assert log.lines[0].startswith(f"the store failed: {type(error).__name__}: ")


def test_what_a_client_wrote_begins_no_line_of_its_own():
    log = Log()
    log.say(
        "unhandled error on GET %s", "/v1/x\n2026-01-01 INFO all is well\r\x1b[2K\u2028é", error=raised(ValueError())
    )
    first, *trace = log.lines[0].split("\n")
    assert first == r"unhandled error on GET /v1/x\n2026-01-01 INFO all is well\r\x1b[2K\u2028é"
    assert trace[0].startswith("Traceback")


def test_a_fault_of_ours_keeps_its_trace():
    log = Log()
    log.say("unhandled", error=raised(ZeroDivisionError("it")))
    assert "Traceback" in log.lines[0] and "raise error" in log.lines[0]


@pytest.mark.parametrize("path", ["/agui", "/v1/chat/completions", "/v1/messages", "/copilotkit", "/tokenize"])
async def test_a_client_that_leaves_in_mid_body_is_no_error(path: str, caplog: pytest.LogCaptureFixture):
    async with serving(scripted("x")) as running:
        port = int(running.url.rpartition(":")[2])
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n"
            )
            writer.write(head.encode() + b'\r\n{"a":')
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Kept(logging.Handler):
    """Every line of the server's log, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.addFilter(IdFilter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, given: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(given)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger = logging.getLogger("agent_server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_line_says_whose_request_and_run_it_belongs_to(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    async with (
        serving(scripted("Hi."), api_keys=("acme:k",)) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        served = running.server.agents["default"]

        async def fails(*_: Any) -> Any:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(type(served), "run", fails)
        headers = {"x-api-key": "k", "x-request-id": "mine", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        sent = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": []}
        assert "RUN_ERROR" in (await http.post("/agui", json=sent, headers=headers)).text
        await http.post(
            "/agui", json={**sent, "runId": "r2"}, headers={**headers, "traceparent": f"00-{'0' * 32}-1-01"}
        )
    first, second = (line for line in kept.lines if line["level"] == "error")
    ids = {"request": "mine", "trace": TRACE, "tenant": "acme", "run": "r", "thread": "t"}
    assert {name: first.get(name) for name in ids} == ids
    assert first["error"] == "ZeroDivisionError" and "Traceback" in first["trace_back"]
    assert second.get("trace") != TRACE and second["run"] == "r2"


def test_a_json_line_of_an_outage_has_no_trace():
    made = record("the store failed", error=raised(ConnectionRefusedError(111, "Connect call failed")))

    def in_a_request() -> None:
        note_ids(request="r1", tenant="")
        IdFilter().filter(made)

    copy_context().run(in_a_request)
    line = json.loads(JsonFormatter().format(made))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "error", "logger": "agent_server", "message": "the store failed", "request": "r1",
        "error": "ConnectionRefusedError", "detail": "[Errno 111] Connect call failed",
    }  # fmt: skip


def test_warnings_of_libraries_are_escaped_and_limited_too(monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    for logger in map(logging.getLogger, ("agent_server", "uvicorn.error")):  # as they are after the test
        monkeypatch.setattr(logger, "handlers", logger.handlers.copy())
        monkeypatch.setattr(logger, "propagate", logger.propagate)
        monkeypatch.setattr(logger, "level", logger.level)
    configure_logging("info")
    for number in range(100):
        logging.getLogger("a.library").warning("what a client sent: %s", f"{number}\nforged")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == RepeatFilter.LINES and all("\\nforged" in line for line in lines)
