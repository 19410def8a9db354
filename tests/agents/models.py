"""A model for tests: a scripted engine behind a prompt builder that writes the conversation down as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from agent_server.engine_protocol.protocol import EngineError, EngineItem, Finished, GenerationRequest, Usage
from agent_server.engines.scripted import Clock, Script, ScriptedEngine
from agent_server.media.intake import Intake
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.prompt import declared_tools
from agent_server.settings import MediaLimits, OutputSettings
from events.formats.output_format import OutputFormat
from events.formats.registry import named
from events.options import GenerationOptions

HERMES = named("hermes")


class JsonPrompts:
    """The prompt is the request as JSON, so that a script can look at what the model was told."""

    control_ids: Mapping[str, int] = {}
    context_length: int | None = None

    def __init__(self, output_format: OutputFormat) -> None:
        self._output_format = output_format

    def output_format(self, tools: bool = False) -> OutputFormat:
        return self._output_format

    def analysis(self, tools: bool = False) -> None:
        return None

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    async def build_async(
        self, input: RunAgentInput, options: GenerationOptions, instructions: str | None = None, *, fits: bool = True
    ) -> Prompt:
        told = {
            "instructions": instructions,
            "messages": [message.model_dump(mode="json", by_alias=True) for message in input.messages],
            "tools": [tool.name for tool in declared_tools(input.tools or (), GenerationOptions())],
            "choice": options.tool_choice.mode,
            "thinking": options.thinking,
        }
        text = json.dumps(told)
        return Prompt(token_ids=tuple(text.encode()), text=text, output_format=self._output_format)


def told(request: GenerationRequest) -> dict[str, Any]:
    """What a request tells the model."""
    return json.loads(bytes(request.prompt_token_ids))


class Model:
    """A LanguageModel. `scripts`: texts or Scripts in turn, or a function of what the model is told."""

    name, adapter = "test-model", ""
    output = OutputSettings()

    def __init__(
        self,
        scripts: Iterable[str | Script] | Callable[[dict[str, Any]], str | Script],
        *,
        grammars: bool = False,
        clock: Clock | None = None,
        context_length: int = 32768,
    ) -> None:
        chosen: Any = [_script(each) for each in scripts] if not callable(scripts) else None
        if callable(scripts):
            chosen = lambda request: _script(scripts(told(request)))  # noqa: E731
        self.engine = ScriptedEngine(chosen, supports_constraints=grammars, clock=clock, context_length=context_length)
        self.prompts = JsonPrompts(HERMES)
        self.intake = Intake(MediaLimits())

    @contextlib.asynccontextmanager
    async def use(self, tell: Any) -> AsyncIterator[None]:
        yield

    @property
    def told(self) -> list[dict[str, Any]]:
        return [told(request) for request in self.engine.requests]


class KeepingEngine:
    """A scripted engine that keeps places. `filled`: the prompts that it was to compute, in order."""

    def __init__(self, scripted: Any, error: EngineError | None = None) -> None:
        self._scripted = scripted
        self._error = error
        self.info = msgspec.structs.replace(scripted.info, cache_hold_seconds=60.0)
        self.filled: list[bytes] = []
        self.places: list[Any] = []
        self.changed = asyncio.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scripted, name)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        self.places.append(request.cache_hold)
        if not request.cache_hold.prefill_only:
            async for item in self._scripted.generate(request):
                yield item
            return
        async with self.changed:
            self.filled.append(bytes(request.prompt_token_ids))
            self.changed.notify_all()
        if self._error is not None:
            raise self._error
        yield Finished(reason="length", usage=Usage())

    async def until(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.filled) >= count)

    @property
    def asked(self) -> list[bytes]:
        """The prompts of turns."""
        return [bytes(request.prompt_token_ids) for request in self._scripted.requests]


def _script(given: str | Script) -> Script:
    return given if isinstance(given, Script) else Script(text=given)


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class HandClock:
    """A clock for the engine's delays that is moved by hand."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.Handle:
        self._due.append((self._now + delay, callback))
        return asyncio.Handle(callback, (), asyncio.get_running_loop())

    async def tick(self, turns: int = 40) -> None:
        """Let one delay of a second pass, and everything happen that follows from it."""
        self._now += 1.0
        due, self._due = self._due, []
        for at, callback in due:
            if at <= self._now:
                callback()
            else:
                self._due.append((at, callback))
        await settle(turns)


async def settle(turns: int = 40) -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(turns):
        await asyncio.sleep(0)
