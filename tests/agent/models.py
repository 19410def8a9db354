"""A model for tests: a scripted engine behind a prompt builder that writes the conversation down as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from ag_ui.core import RunAgentInput

from agent_server.engine.protocol import GenerationRequest
from agent_server.engines.scripted import ScriptedEngine
from agent_server.engines.scripts import Script
from agent_server.prompting.prompt import Prompt
from agent_server.settings import OutputSettings
from events.formats.output_format import OutputFormat
from events.formats.registry import named
from events.options import GenerationOptions

HERMES = named("hermes")


class JsonPrompts:
    """The prompt is the request as JSON, so that a script can look at what the model was told."""

    control_ids: Mapping[str, int] = {}

    def __init__(self, output_format: OutputFormat) -> None:
        self._output_format = output_format

    def output_format(self, tools: bool = False) -> OutputFormat:
        return self._output_format

    def analysis(self, tools: bool = False) -> None:
        return None

    async def build_async(
        self, input: RunAgentInput, options: GenerationOptions, instructions: str | None = None
    ) -> Prompt:
        told = {
            "instructions": instructions,
            "messages": [message.model_dump(mode="json", by_alias=True) for message in input.messages],
            "tools": [tool.name for tool in input.tools or ()],
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
        self, scripts: Iterable[str | Script] | Callable[[dict[str, Any]], str | Script], *, grammars: bool = False
    ) -> None:
        if callable(scripts):
            self.engine = ScriptedEngine(lambda request: _script(scripts(told(request))), supports_constraints=grammars)
        else:
            self.engine = ScriptedEngine([_script(each) for each in scripts], supports_constraints=grammars)
        self.prompts = JsonPrompts(HERMES)

    @contextlib.asynccontextmanager
    async def use(self, tell: Any) -> AsyncIterator[None]:
        yield

    @property
    def told(self) -> list[dict[str, Any]]:
        return [told(request) for request in self.engine.requests]


def _script(given: str | Script) -> Script:
    return given if isinstance(given, Script) else Script(text=given)


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
