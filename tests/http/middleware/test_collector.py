"""A run's trace in a real collector: Arize Phoenix, which takes OTLP and tells over HTTP what it has."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import ROOT

PHOENIX = Path(os.environ.get("PHOENIX_ENV", ROOT / ".phoenix")) / "bin" / "phoenix"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PHOENIX.exists(), reason="no Phoenix; make test-collector installs it"),
]
SECONDS = 300


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[httpx.Client]:
    port, grpc = free_ports(2)
    given = {
        "PHOENIX_WORKING_DIR": str(tmp_path), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_TELEMETRY_ENABLED": "false",
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([PHOENIX, "serve"], env={**os.environ, **given}, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_for(lambda: client.get("/healthz").status_code == 200)
            yield client
    finally:
        process.terminate()
        process.wait()


def wait_for(condition: Any) -> Any:
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        with contextlib.suppress(httpx.TransportError):
            if found := condition():
                return found
        time.sleep(0.2)
    raise AssertionError("it did not come about")


def test_a_run_is_one_trace_with_its_turns_and_calls_under_it(phoenix: httpx.Client) -> None:
    trace, caller = secrets.token_hex(16), secrets.token_hex(8)
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": str(phoenix.base_url).rstrip("/")}
    command = [sys.executable, "-m", "tests.http.middleware.traced_run", f"00-{trace}-{caller}-01"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=SECONDS)

    def told() -> list[dict[str, Any]]:
        found = phoenix.get("/v1/projects/default/spans", params={"limit": 100}).json().get("data", [])
        return found if any(each["name"].startswith("invoke_agent") for each in found) else []

    spans = [each for each in wait_for(told) if each["context"]["trace_id"] == trace]
    (run,) = [each for each in spans if each["name"].startswith("invoke_agent")]
    below = [each["name"].partition(" ")[0] for each in spans if each["parent_id"] == run["context"]["span_id"]]
    assert sorted(below) == ["chat", "chat", "execute_tool"]
    above = next(each for each in spans if each["context"]["span_id"] == run["parent_id"])
    assert above["parent_id"] == caller
