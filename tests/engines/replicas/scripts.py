"""Engines that fail as a test says, by the prompt and the number of the attempt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from agent_server.engine_protocol.protocol import Control, Delta, Finished, GenerationRequest
from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.settings import ReplicaSettings
from events.options import SamplingParams

TEXT = "A short answer with an é and a 😀 in it."


def attempt_of(request: GenerationRequest) -> int:
    return int(request.request_id.partition(".")[2] or 0)


def failing(faults: Mapping[int, Fault], **script) -> Callable[[GenerationRequest], Script]:
    """The attempts by their number, with what goes wrong in them."""
    return lambda request: Script(**{"text": TEXT, **script}, fault=faults.get(attempt_of(request)))


def request(name="one", prompt=(1, 2, 3), **options):
    taken = {key: options.pop(key) for key in ("generated", "constraint", "tenant") if key in options}
    return GenerationRequest(
        request_id=name, prompt_token_ids=tuple(prompt), sampling=SamplingParams(**options), **taken
    )


class Mute(ScriptedEngine):
    """Says everything but how a first attempt ended."""

    async def generate(self, request):
        async with contextlib.aclosing(super().generate(request)) as items:
            async for item in items:
                if attempt_of(request) or not isinstance(item, Finished):
                    yield item


async def started(scripts, count=2, names: Sequence[str] = (), engine=None, **settings):
    options = dict(engine or {})
    made_by = options.pop("made", ScriptedEngine)
    engines = [made_by(scripts, **options) for _ in range(count)]
    made = ReplicaSet(engines, ReplicaSettings(**settings), names=names)
    await made.start()
    while made.status.state != "ready":
        await asyncio.sleep(0.01)
    return made


async def collect(engine, asked, into=None):
    """Every item; `into` has those that came when it fails."""
    items = [] if into is None else into
    async for item in engine.generate(asked):
        items.append(item)
    return items


def text(items):
    return "".join(token.text for item in items if isinstance(item, Delta) for token in item.tokens)


def controls(items):
    return [(item.action, item.position) for item in items if isinstance(item, Control)]
