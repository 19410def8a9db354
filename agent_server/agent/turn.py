"""One turn of the model: prompt → engine → translator → events, and what the turn said as messages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from ag_ui.core import Message, RunAgentInput, ToolCall
from events.translator import Translator

from agent_server.agent.collected import Collected
from agent_server.agent.reasoning import ReasoningPolicy
from agent_server.engine.protocol import Control, Delta, Engine, EngineError, Finished, GenerationRequest, Token
from agent_server.runs import Execution
from events.options import GenerationOptions
from events.vocabulary import Custom, Event

CONTROL_EVENT = "agent_server.control"
RENDER_SECONDS = 10.0


class Prompts(Protocol):
    """What turns a conversation into token ids; `agent_server.engine.prompt.PromptBuilder` is one."""

    def build(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None = None) -> Any: ...


class LanguageModel(Protocol):
    """A model as a turn needs it; `agent_server.engine.model.ChatModel` is one."""

    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def prompts(self) -> Prompts: ...


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said in one turn. `messages`: reasoning and assistant messages, in order, for the next prompt;
    `shown`: the same as clients have them."""

    messages: tuple[Message, ...]
    shown: tuple[Message, ...]
    calls: tuple[ToolCall, ...]
    text: str
    finished: Finished


class TurnTaker:
    """Takes turns of one model on behalf of one run.

    emit: where events go (a subagent's are marked on the way). follow: sees every event of the model's before it is
    sent on.
    """

    def __init__(
        self,
        model: LanguageModel,
        execution: Execution,
        emit: Callable[[Event], None],
        *,
        reasoning: ReasoningPolicy | None = None,
        follow: Callable[[Event], None] | None = None,
    ) -> None:
        self._model = model
        self._execution = execution
        self._emit = emit
        self._reasoning = reasoning
        self._follow = follow

    async def take(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None = None) -> Turn:
        """Generate one turn. Raises EngineError; on that and on cancellation what is open has been closed."""
        execution = self._execution
        await execution.controls.gate()
        prompt = await self._render(input, options, instructions)
        for warning in prompt.warnings:
            execution.warn(warning)
        translator = Translator(
            prompt.output_format,
            tools=input.tools or [],
            opened=prompt.opened,
            new_id=execution.new_id,
            marker_ids=prompt.marker_ids,
        )
        request = GenerationRequest(
            request_id=execution.new_id("gen"),
            prompt_token_ids=tuple(prompt.token_ids),
            sampling=execution.controls.sampling(options),
            tenant=execution.tenant,
        )
        collected = Collected()
        finished = await self._generate(request, translator, collected, options.token_details)
        execution.count(self._model.name, finished)
        return Turn(
            messages=collected.messages(),
            shown=collected.messages(shown=True),
            calls=collected.calls(),
            text=collected.text(),
            finished=finished,
        )

    async def _render(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> Any:
        build = self._model.prompts.build
        if inspect.iscoroutinefunction(build):
            return await build(input, options, instructions)
        return await asyncio.to_thread(build, input, options, instructions)

    async def _generate(
        self, request: GenerationRequest, translator: Translator, collected: Collected, details: bool
    ) -> Finished:
        engine, controls = self._model.engine, self._execution.controls
        finished: Finished | None = None
        reason = "error"
        controls.attach(request.request_id, engine)
        try:
            async with contextlib.aclosing(engine.generate(request)) as items:
                async for item in items:
                    if type(item) is Delta:
                        self._execution.first_token()
                        for token in item.tokens:
                            detail = _detail(token) if details else None
                            await self._deliver(translator.feed(token.text, token.id, detail), collected)
                    elif isinstance(item, Finished):
                        finished, reason = item, item.reason
                    elif isinstance(item, Control):
                        self._emit(Custom(name=CONTROL_EVENT, value=msgspec.structs.asdict(item)))
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            controls.detach(request.request_id)
            await self._deliver(translator.finish(reason), collected)
        if finished is None:
            raise EngineError("connection", "The engine ended a generation without saying how.", retryable=True)
        return finished

    async def _deliver(self, events: list[Event], collected: Collected) -> None:
        for event in events:
            collected.see(event)
            if self._follow is not None:
                self._follow(event)
            if self._reasoning is None:
                self._emit(event)
            else:
                for shown in await self._reasoning.shown(event, collected):
                    self._emit(shown)


def _detail(token: Token) -> list[Any]:
    """A token as event metadata has it: [id, text, logprob, [[id, text, logprob], ...]]."""
    others = [[other.id, other.text, other.logprob] for other in token.alternatives or ()]
    return [token.id, token.text, token.logprob, others]
