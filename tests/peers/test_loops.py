"""litellm, openai-agents and Agent Framework run their loops, tools and several turns, against a running server: `make test-peers`.

They pin versions of packages that ours cannot follow, so they live in an environment of their own, PEERS_ENV.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_agent_loops import turn_of
from tests.server import scripted, serving

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]
HERE = Path(__file__).parent


async def loops(framework: str, url: str) -> dict[str, Any]:
    """What the framework did; AssertionError with what it said if it failed."""
    python = Path(os.environ["PEERS_ENV"]) / "bin" / "python"
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(HERE / "loops.py"),
        framework,
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.parametrize("framework", ["agent-framework", "litellm", "openai-agents chat", "openai-agents responses"])
async def test_a_loop_of_several_turns(framework: str) -> None:
    async with serving(scripted(turn_of)) as running:
        found = await loops(framework, running.url + "/v1")
        assert len(running.engine.requests) == 6
    for form in ("whole", "streamed"):
        assert found[form]["called"] == [["get_weather", {"city": "Oslo"}], ["to_fahrenheit", {"celsius": 20}]]
        assert found[form]["answer"] == "It is 68 F in Oslo."
        assert found[form]["tokens"] > 0
