"""Sessions of ten turns: a tool is searched for, a picture is read, a command takes its time, the user interrupts, and
the session goes on. What earlier turns sent stays as it was, so that it stays cached."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from PIL import Image

from agent_server.engines.scripted import Script
from tests.clients.agents import AGENTS, FOLDER
from tests.clients.model import Model, call, connected, first_events
from tests.slow import slow

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]
CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)":(\d+)')
LEAST = 0.95


@pytest.mark.cell("ten turns")
@pytest.mark.parametrize("seconds", [5, *slow([60])])
@pytest.mark.parametrize("agent", ["codex", "claude"])
async def test_ten_turns_stay_cached(agent: str, tmp_path: Path, seconds: int, request: pytest.FixtureRequest) -> None:
    if not (FOLDER / "node_modules").is_dir():
        pytest.fail("The coding agents are not installed: run `make test-clients`.")
    program, model = AGENTS[agent], Model([], sees=True)
    async with connected(program, tmp_path, model, paint=True) as (session, running, _):
        file, picture = session.project / "colours.txt", session.project / "square.png"
        Image.new("RGB", (64, 64), "red").save(picture)
        commands = [f"sleep {seconds} && echo The paint is dry.", "cat colours.txt"]
        calls = [session.when_paint_is_there, *program.search, program.picture(picture)]
        calls += map(program.shell, commands)
        model.scripts = [*map(call, calls), Script(text="word " * 20_000, delay=0.01)]
        process = await session.start("Mix red and blue, look at square.png, and count words.")
        async with asyncio.timeout(seconds + 600):
            while len(model.requests) < 7:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        await session.interrupt(process)
        model.scripts = [*map(call, program.edits(file, "red", "purple")[:2]), Script(text="It is purple.")]
        assert "It is purple." in await session.run("Make it purple instead.", goes_on=True)
        assert file.read_text("utf-8") == "colour = purple\n"
        assert len(model.requests) == 10
        prompt, pictures, shares = model.prompt(), model.requests[-1].pictures, model.shares
        exchanges, cached = list(model.exchanges), list(model.cached)
        second, tenth = await first_events(running.url, model, [2, 10])
    assert "red and blue give purple." in prompt and "The paint is dry." in prompt
    assert len(pictures) == 1

    for turn, (share, exchange) in enumerate(zip(shares, exchanges, strict=True), 1):
        tokens = len(model.requests[turn - 1].prompt_token_ids)
        print(f"turn {turn}: {tokens} tokens, {share:.1%} cached, first event after {exchange.first * 1000:.0f} ms")
    print(f"sent again, by themselves: turn 2 {second * 1000:.1f} ms, turn 10 {tenth * 1000:.1f} ms")
    # Each answer tells the client of its cached tokens, but for the one that was broken off.
    reported = [int(found[-1]) for exchange in exchanges if (found := CACHED.findall(bytes(exchange.body)))]
    assert reported[-3:] == cached[-3:]
    least = min(shares[1:])
    request.node.user_properties.append(("cell", f"{least:.1%} cached, first event × {tenth / second:.2f}"))
    broken = shares.index(least) if least < LEAST else 0
    assert not broken, f"turn {broken + 1} differs from turn {broken}: {model.difference(broken)}"
