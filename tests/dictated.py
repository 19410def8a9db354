"""The scripted answers of a test, spoken by a real vLLM: a grammar leaves it no other choice.

AGENT_SERVER_TEST_ENGINE names an upstream; then whatever the tests would have replayed is generated there, token by
token, and comes back over HTTP like any answer. What a script does beside speaking (faults, delays, pauses) stays
scripted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import Constraint, EngineItem, Finished, GenerationRequest
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.engines.upstream import UpstreamEngine, load_model, parse_address
from agent_server.http.server import BUNDLED
from events.grammar.nodes import Alphabet
from events.options import SamplingParams

ENGINE = os.environ.get("AGENT_SERVER_TEST_ENGINE", "")


class DictatedEngine(ScriptedEngine):
    """A scripted engine whose plain answers come from the upstream. `dictated` counts them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._upstream = UpstreamEngine(parse_address(ENGINE), lambda: load_model(str(BUNDLED), "demo"))
        controls = load_model(str(BUNDLED), "demo").controls
        self._alphabet = Alphabet({text: number for number, text in controls.items()})
        self.dictated = 0

    async def start(self) -> None:
        await super().start()
        await self._upstream.start()

    async def close(self) -> None:
        await super().close()
        await self._upstream.close()

    async def _replay(self, running: Any, script: Script) -> AsyncGenerator[EngineItem, None]:
        if script.fault is not None or script.reason != "stop" or not script.text or running.paused:
            async for item in super()._replay(running, script):
                yield item
            return
        self.dictated += 1
        async with contextlib.aclosing(self._upstream.generate(self._request(running.request, script))) as items:
            async for item in items:
                async for control in self._wait(running, 0.0 if isinstance(item, Finished) else script.delay):
                    yield control
                yield item

    def _request(self, request: GenerationRequest, script: Script) -> GenerationRequest:
        tag = {"type": "structural_tag", "format": self._alphabet.literal(script.text)}
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=request.sampling.max_tokens,
            stop=request.sampling.stop,
            logprobs=request.sampling.logprobs,
        )
        return msgspec.structs.replace(
            request, sampling=sampling, constraint=Constraint(kind="structural_tag", value=tag)
        )


def engine_class() -> type[ScriptedEngine]:
    return DictatedEngine if ENGINE else ScriptedEngine
