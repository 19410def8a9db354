"""Thousands of generations on five replicas that fail at random: nothing is lost, nothing comes twice, and nothing
that failed looks like a success. In virtual time, so that every wait and every silence is as long as it is."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from agent_server.engine_protocol.protocol import Control, Delta, EngineError, Finished, GenerationRequest
from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.settings import ReplicaSettings
from events.options import SamplingParams
from tests.engines.replicas.scripts import Mute, attempt_of
from tests.engines.replicas.virtual import run

REPLICAS = 5
RUNS = int(os.environ.get("RUNS", "2000"))
VIRTUAL_SECONDS = 36_000.0
"""In which everything must have come to an end."""
ALPHABET = "abcdefgh é😀\n"
ACTIONS = ("error", "end", "hang", "crash", "cancelled", "refuse", "overloaded")


@dataclass
class Expected:
    """What a generation is asked for and what must come of it. leaves: its reader goes after so many tokens."""

    request: GenerationRequest
    tokens: list[int]
    stop: str | None
    reason: str
    faults: dict[int, Fault]
    leaves: int | None


def fault_of(chance: random.Random, length: int) -> Fault:
    action = chance.choice(ACTIONS)
    after = 0 if chance.random() < 0.2 else chance.randrange(length + 1)
    match action:
        case "error":
            kind = chance.choice(("connection", "unavailable", "timeout", "internal"))
            return Fault(action="error", kind=kind, retryable=True, after=after)
        case "refuse":
            return Fault(action="error", kind="invalid_request", after=after)
        case "overloaded":
            return Fault(action="error", kind="overloaded", retryable=True, after=0)
        case _:
            return Fault(action=action, after=after)


def expected(number: int) -> Expected:
    """The generation by its number alone, so that a failure can be looked at again."""
    chance = random.Random(number)
    text = "".join(chance.choices(ALPHABET, k=chance.randrange(1, 60)))
    tokens = list(text.encode())
    sampling: dict[str, object] = {}
    reason, stop = "stop", None
    if chance.random() < 0.3:
        sampling["max_tokens"] = chance.randrange(1, len(tokens) + 5)
    if chance.random() < 0.4:
        at = chance.randrange(len(text))
        sampling["stop"] = (text[at : at + chance.randrange(1, 6)],)
    prompt = (*chance.choices(range(256), k=chance.randrange(1, 100)), *number.to_bytes(4, "big"))
    request = GenerationRequest(
        request_id=f"run-{number}", prompt_token_ids=prompt, sampling=SamplingParams(**sampling), tenant=str(number % 3)
    )
    faults = {attempt: fault_of(chance, len(tokens)) for attempt in range(8) if chance.random() < 0.5}
    leaves = chance.randrange(len(tokens)) if chance.random() < 0.05 else None
    return Expected(request, tokens, stop, reason, faults, leaves)


class Chaos:
    """Five engines over one table of what they are to do, and what became of each generation."""

    def __init__(self, runs: int) -> None:
        self.table = {each.request.prompt_token_ids: each for each in map(expected, range(runs))}
        self.outcomes: Counter[str] = Counter()
        self.resumed = 0
        engines = [self.engine(number) for number in range(REPLICAS)]
        self.set = ReplicaSet(
            engines,
            ReplicaSettings(
                in_flight=24, queued=runs, idle=20.0, first_token=30.0, attempts=4, cooldown=0.5, wait=60.0
            ),
        )

    def engine(self, number: int) -> ScriptedEngine:
        made = Mute if number == 0 else ScriptedEngine
        return made(self.script, context_length=4096)

    def script(self, request: GenerationRequest) -> Script:
        wanted = self.table[request.prompt_token_ids]
        chance = random.Random(request.request_id)
        return Script(
            tokens=tuple(wanted.tokens),
            chunk=chance.randrange(1, 5),
            delay=chance.choice((0.0, 0.01, 0.05)),
            fault=wanted.faults.get(attempt_of(request)),
        )

    async def one(self, wanted: Expected, undisturbed: tuple[list[int], str, Finished]) -> None:
        """Run it and compare with what it would have been without any fault."""
        tokens, text, end = undisturbed
        ids: list[int] = []
        heard = ""
        finished: list[Finished] = []
        stream = self.set.generate(wanted.request)
        try:
            async for item in stream:
                assert not finished and not isinstance(item, Control)
                if isinstance(item, Delta):
                    ids += [token.id for token in item.tokens]
                    heard += "".join(token.text for token in item.tokens)
                else:
                    assert isinstance(item, Finished)
                    finished.append(item)
                if wanted.leaves is not None and len(ids) > wanted.leaves:
                    await stream.aclose()
                    self.outcomes["left"] += 1
                    assert (ids, heard) == (tokens[: len(ids)], text[: len(heard)])
                    return
        except EngineError as error:
            self.outcomes[error.kind] += 1
            assert not finished
            assert (ids, heard) == (tokens[: len(ids)], text[: len(heard)]), wanted.request.request_id
            return
        assert (ids, heard) == (tokens, text), wanted.request.request_id
        (last,) = finished
        assert (last.reason, last.stop, last.usage) == (end.reason, end.stop, end.usage)
        self.outcomes["resumed" if last.resumed else "finished"] += 1
        self.resumed += last.resumed


async def undisturbed_runs(table: dict[tuple[int, ...], Expected]) -> dict[str, tuple[list[int], str, Finished]]:
    engine = ScriptedEngine(
        lambda request: Script(tokens=tuple(table[request.prompt_token_ids].tokens)), context_length=4096
    )
    await engine.start()
    found = {}
    for wanted in table.values():
        items = [item async for item in engine.generate(wanted.request)]
        tokens = [token for item in items if isinstance(item, Delta) for token in item.tokens]
        found[wanted.request.request_id] = ([t.id for t in tokens], "".join(t.text for t in tokens), items[-1])
    return found


async def disturbance(chaos: Chaos) -> None:
    """Replicas come and go: one after the other is drained, or loses everything that it is at."""
    chance = random.Random(1)
    while True:
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        replica = chance.choice(chaos.set.replicas)
        if chance.random() < 0.5:
            chaos.set.drain(replica.name)
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            chaos.set.drain(replica.name, False)
        else:
            replica.engine.crash()
            await asyncio.sleep(chance.uniform(0.1, 3.0))
            await replica.engine.start()


async def survive(runs: int) -> Chaos:
    chaos = Chaos(runs)
    truth = await undisturbed_runs(chaos.table)
    await chaos.set.start()
    disturbing = asyncio.create_task(disturbance(chaos))
    tasks = {
        asyncio.create_task(chaos.one(wanted, truth[name]), name=name)
        for wanted in chaos.table.values()
        if (name := wanted.request.request_id)
    }
    done, stuck = await asyncio.wait(tasks, timeout=VIRTUAL_SECONDS)
    assert not stuck, sorted(task.get_name() for task in stuck)[:10]
    disturbing.cancel()
    for task in done:
        task.result()
    assert [replica.in_flight for replica in chaos.set.replicas] == [0] * REPLICAS
    assert not chaos.set._flows and not chaos.set._attempts and not chaos.set.balancer.waiting
    assert not any(replica.engine.running for replica in chaos.set.replicas)
    await chaos.set.close()
    return chaos


@pytest.mark.timeout(300)
def test_generations_on_five_replicas_that_fail_at_random():
    chaos = run(survive(RUNS))
    assert sum(chaos.outcomes.values()) == RUNS
    share = {name: count / RUNS for name, count in chaos.outcomes.items()}
    assert share["finished"] > 0.2 and share["resumed"] > 0.15 and share["left"] > 0.01
    assert chaos.outcomes["invalid_request"] > 0  # a request at fault is not tried again, whatever came before
