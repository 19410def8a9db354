"""One turn of the model: prompt → engine → translator → events, and what the turn said as messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec
from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolCall
from opentelemetry.trace import Span, SpanKind

from agent_server.agent.conversation import Conversation
from agent_server.agent.read_ahead import Asked, ReadAhead
from agent_server.agent.reasoning_policy import ReasoningPolicy
from agent_server.engine.protocol import (
    Control,
    Delta,
    Engine,
    EngineError,
    EngineStatus,
    Finished,
    GenerationRequest,
    Picture,
    Place,
    Usage,
)
from agent_server.guardrails import Forbidden, GuardedStream
from agent_server.media.intake import Held, Intake
from agent_server.prompting.constraints import plan_constraint, refuse_early
from agent_server.prompting.output import open_translator, sampling_for
from agent_server.prompting.prompt import Prompt, Prompts
from agent_server.prompting.schemas import Invalid, validate
from agent_server.prompting.thinking import thinking_budget
from agent_server.runs import Recorder, RunContext
from agent_server.runs.execution import token_row
from agent_server.settings import OutputSettings
from agent_server.tracing import PROVIDER, note, note_content, span
from events.delivery import joined
from events.message import Folder, to_dicts, to_models
from events.metadata import without_tokens
from events.options import GenerationOptions, SamplingParams
from events.plain import PlainTranslator
from events.translator import Translator
from events.vocabulary import CONTROL_EVENT, INVALID_EVENT, LOADING_EVENT, Custom, Event, RunError

LAST_MESSAGES = 16
"""Messages of the prompt that a trace with content has."""


class LanguageModel(Protocol):
    """A model as a turn needs it; `agent_server.chat_model.ChatModel` is one."""

    @property
    def name(self) -> str: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def prompts(self) -> Prompts: ...
    @property
    def output(self) -> OutputSettings: ...
    @property
    def intake(self) -> Intake: ...
    @property
    def adapter(self) -> str: ...

    def use(self, tell: Callable[[EngineStatus], None]) -> AbstractAsyncContextManager[None]:
        """Around all that a turn asks of it: it is loaded before, and stays until after. tell: of the wait."""


class Unreadable(EngineError):
    """The model's output could not be read and the request wants that to end the run."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__("internal", message)
        self.kind = code or "internal"  # type: ignore[assignment]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said: reasoning and assistant messages, in order, for the next prompt, and `shown`: the same as
    clients have them (with less of the reasoning)."""

    messages: tuple[Message, ...] = ()
    shown: tuple[Message, ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        made = [message.tool_calls or () for message in self.messages if isinstance(message, AssistantMessage)]
        return tuple(call for calls in made for call in calls)

    @property
    def text(self) -> str:
        spoken = [message.content for message in self.messages if isinstance(message, AssistantMessage)]
        return "".join(each for each in spoken if each)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that came to its end. `invalid`: id of a call → what is wrong with its arguments."""

    said: Said
    finished: Finished
    invalid: Mapping[str, str] = {}


class TurnTaker:
    """Takes turns of one model on behalf of one run.

    place: the name under which the engine keeps what it has computed of the conversation between turns; "" keeps none.
    emit: where events go (a subagent's are marked on the way). follow: sees every event of the model's before it is
    sent on. guarded: what the model says goes through it first; what it does not let through is nowhere else, and ends
    the turn with Forbidden. `said()` also tells what an unfinished turn said before it failed or was cancelled.
    """

    def __init__(
        self,
        model: LanguageModel,
        context: RunContext,
        recorder: Recorder,
        emit: Callable[[Event], None],
        *,
        reasoning: ReasoningPolicy | None = None,
        follow: Callable[[Event], None] | None = None,
        place: str = "",
        guarded: GuardedStream | None = None,
    ) -> None:
        self._model = model
        self._context = context
        self._recorder = recorder
        self._emit = emit
        self._reasoning = reasoning
        self._follow = follow
        self._place = place
        self._guarded = guarded
        self._watched = reasoning is not None or guarded is not None
        self._tokens = 0
        self._written = self._shown = Folder()
        self._reasoning_tokens = 0
        self._told: Callable[[Event], None] | None = None

    async def take(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        told: Callable[[Event], None] | None = None,
    ) -> Turn:
        """Generate one turn. told: sees every event of it behind its sending. Raises EngineError, or Forbidden for
        what a guard stops; on these and on cancellation what is open has been closed."""
        self._told = told
        self._written = Folder()
        self._shown = self._written if self._reasoning is None else Folder()
        self._reasoning_tokens = self._tokens = 0
        if self._guarded is not None:
            options = self._unscored(options)
        await self._context.controls.gate()
        async with self._model.use(self._tell_loading):
            of, thread = self._model.name, input.thread_id
            named = {"provider__name": PROVIDER, "request__model": of, "conversation__id": thread}
            with span("chat", of, SpanKind.CLIENT, **named) as traced:
                with self._model.intake.hold() as held:
                    turn = await self._take(input, options, instructions, held)
                self._trace(traced, turn, input, options)
                return turn

    def _unscored(self, options: GenerationOptions) -> GenerationOptions:
        """Without the details of tokens: they spell what guards are to read first, and what was not even chosen."""
        if options.sampling.logprobs is not None:
            self._recorder.warn("Guards read what is said, so tokens and their log probabilities are not given.")
        sampling = msgspec.structs.replace(options.sampling, logprobs=None)
        return msgspec.structs.replace(options, token_details=False, sampling=sampling)

    def ahead(self, conversation: Conversation, asked: Callable[[], Asked]) -> ReadAhead:
        """Around the calls of a turn: what is known of the next one (`asked`) is read ahead, where the engine can."""
        keeps = self._place and self._model.engine.info.keeps_places
        return ReadAhead(conversation, asked, self._prompt, self._compute if keeps else None)

    async def _compute(self, beginning: tuple[int, ...], options: GenerationOptions) -> None:
        async with self._model.use(lambda status: None):
            engine = self._model.engine
            place = Place(key=self._place, fill=True, seconds=engine.info.keeps_places)
            request = GenerationRequest(
                request_id=self._context.new_id("ahead"),
                prompt_token_ids=beginning,
                sampling=SamplingParams(),
                tenant=self._context.tenant,
                priority=-options.priority,
                cache_salt=options.cache_salt,
                adapter=self._model.adapter,
                place=place,
            )
            async with contextlib.aclosing(engine.generate(request)) as items:
                async for _ in items:
                    pass

    def _trace(self, traced: Span, turn: Turn, input: RunAgentInput, options: GenerationOptions) -> None:
        if not traced.is_recording():
            return
        finished, sampling = turn.finished, options.sampling
        note(
            traced,
            request__max_tokens=sampling.max_tokens,
            request__temperature=sampling.temperature,
            request__top_p=sampling.top_p,
            response__model=self._model.name,
            response__finish_reasons=[finished.reason],
            response__time_to_first_chunk=finished.timings.first_token,
            usage__input_tokens=finished.usage.prompt_tokens,
            usage__output_tokens=finished.usage.completion_tokens,
        )
        said = to_dicts(turn.said.messages)
        note_content(traced, input__messages=to_dicts(input.messages[-LAST_MESSAGES:]), output__messages=said)

    def _tell_loading(self, status: EngineStatus) -> None:
        """A reader of events sees how far the model is; the other wires wait."""
        progress = {} if status.progress is None else {"progress": round(status.progress, 3)}
        value = {"model": self._model.name, "state": status.state, **progress, "message": status.message}
        self._emit(Custom(name=LOADING_EVENT, value=value))

    async def _take(
        self, input: RunAgentInput, options: GenerationOptions, instructions: str | None, held: Held
    ) -> Turn:
        context, recorder, settings = self._context, self._recorder, self._model.output
        await refuse_early(input, options, settings)
        prompt = await self._prompt(input, options, instructions)
        recorder.prompted(prompt.token_ids, told=context.options.token_details)
        info = self._model.engine.info
        analysis = self._model.prompts.analysis(bool(input.tools)) if options.reasoning_effort else None
        budget = thinking_budget(prompt.output_format, prompt.opened, analysis, options, info)
        for warning in (*prompt.warnings, *budget.warnings):
            recorder.warn(warning)
        controls = self._model.prompts.control_ids
        planned = await plan_constraint(prompt, controls, input, options, settings, info)
        for warning in planned.warnings:
            recorder.warn(warning)
        recorder.constrained = recorder.constrained or planned.constraint is not None
        request = GenerationRequest(
            request_id=context.new_id("gen"),
            prompt_token_ids=prompt.token_ids,
            sampling=sampling_for(prompt, context.controls.sampling(budget.options)),
            constraint=planned.constraint,
            thought=budget.thought,
            priority=-options.priority,
            cache_salt=options.cache_salt,
            tenant=context.tenant,
            turn=recorder.turns + goes_on(context.input),
            pictures=await self._pictures(prompt, options, held),
            adapter=self._model.adapter,
            place=Place(key=self._place) if self._place and info.keeps_places else None,
        )
        recorder.turns += 1
        translator = open_translator(prompt, input, options, settings, context.new_id)
        # in a task of its own: a token wakes this one and not the whole chain of those who wait for the run
        try:
            finished = await asyncio.create_task(self._generate(request, translator, options.token_details))
        except Forbidden:
            self._count_stopped(len(prompt.token_ids))
            raise
        for warning in translator.warnings if self._guarded is None else ():  # they may quote what was withheld
            recorder.warn(warning)
        recorder.count(self._model.name, finished, self._reasoning_tokens)
        if options.token_details:
            recorder.describe_prompt(prompt.token_ids, finished)
            recorder.unsent = translator.unsent
        said = self.said()
        return Turn(said=said, finished=finished, invalid=await self._validate(said, input))

    def _count_stopped(self, prompt_tokens: int) -> None:
        """Count a generation that a guard stopped: its tokens were computed."""
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self._tokens)
        self._recorder.count(self._model.name, Finished(reason="stop", usage=usage), self._reasoning_tokens)

    async def _prompt(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> Prompt:
        build = self._model.prompts.build_async
        sees = "image" in self._model.engine.info.placeholders
        messages = await self._model.intake.documents(input.messages, sees=sees)
        input = input.model_copy(update={"messages": messages})
        if sees:
            return await build(input, options, instructions, sees=True)
        return await build(input, options, instructions)

    async def _pictures(self, prompt: Prompt, options: GenerationOptions, held: Held) -> tuple[Picture, ...]:
        """Those that the prompt has places for. Raises EngineError."""
        if not prompt.pictures:
            return ()
        if options.sampling.prompt_logprobs is not None:
            message = "The tokens of a prompt with pictures have no log probabilities here."
            raise EngineError("invalid_request", message, param="prompt_logprobs")
        return await self._model.intake.pictures(prompt.pictures, held)

    async def _validate(self, said: Said, input: RunAgentInput) -> dict[str, str]:
        """What is wrong with the calls' arguments, by the calls' ids; clients are told as well."""
        schemas = {tool.name: tool.parameters for tool in input.tools or ()}
        invalid: dict[str, str] = {}
        for call in said.calls:
            found = await validate(call.function.arguments, schemas.get(call.function.name))
            if found is not None:
                invalid[call.id] = str(found)
                self._recorder.warn(f"The arguments of {call.function.name} do not fit its schema: {found}")
                self._emit(Custom(name=INVALID_EVENT, value=_invalid(call, found)))
        return invalid

    def said(self) -> Said:
        """What the turn under way, or the last one, said so far."""
        shown = to_models(_kept(message) for message in self._shown.messages)
        if self._written is self._shown:
            return Said(messages=tuple(shown), shown=tuple(shown))
        written = to_models(_kept(message) for message in self._written.messages)
        return Said(messages=tuple(written), shown=tuple(shown))

    async def _generate(
        self, request: GenerationRequest, translator: Translator | PlainTranslator, details: bool
    ) -> Finished:
        engine, controls = self._model.engine, self._context.controls
        finished: Finished | None = None
        reason = "error"
        controls.attach(request.request_id, engine)
        try:
            async with contextlib.aclosing(engine.generate(request)) as items:
                async for item in items:
                    if isinstance(item, Delta):
                        events = self._read(item, translator, details)
                        if self._watched:
                            self._tokens += len(item.tokens)
                            await self._tell_watched(events)
                        else:  # nothing to wait for, so no coroutine for every token
                            self._tell(events)
                    elif isinstance(item, Finished):
                        finished, reason = item, item.reason
                    elif isinstance(item, Control):
                        self._emit(Custom(name=CONTROL_EVENT, value=msgspec.structs.asdict(item)))
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            controls.detach(request.request_id)
            if finished is None and self._reasoning is not None:
                self._reasoning.hurry()
            await self._tell_end(translator, reason)
        if finished is None:
            raise EngineError("connection", "The engine ended a generation without saying how.", retryable=True)
        return finished

    def _read(self, delta: Delta, translator: Translator | PlainTranslator, details: bool) -> list[Event]:
        """What the tokens say. Several at once are what an engine made before the first of them was taken: the server
        is behind, and one event for them costs what one token's would."""
        self._recorder.first_token()
        if len(delta.tokens) > 1 and not details and not delta.is_reasoning:
            text = "".join(token.text for token in delta.tokens)
            if translator.is_plain(text, (token.id for token in delta.tokens)):
                self._reasoning_tokens += translator.reasoning * len(delta.tokens)
                return translator.feed(text)
        events: list[Event] = []
        for token in delta.tokens:
            detail = token_row(token) if details else None
            self._reasoning_tokens += translator.reasoning
            events += translator.feed(token.text, token.id, detail, delta.is_reasoning)
        return joined(events) if len(delta.tokens) > 1 else events

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            self._keep(event)
            self._emit(event)
            if self._told is not None:
                self._told(event)

    async def _tell_end(self, translator: Translator | PlainTranslator, reason: str) -> None:
        """The last events. Of a turn that broke off, guards are asked nothing more: what waits for them is left out.
        Raises Forbidden."""
        guarded = self._guarded
        if not self._watched:
            self._tell(translator.finish(reason))
        elif guarded is not None and reason in ("cancelled", "error"):
            await self._tell_policed(guarded.closing())
        else:
            try:
                await self._tell_watched(translator.finish(reason))
            except Forbidden:
                await self._tell_policed([] if guarded is None else guarded.closing())
                raise

    async def _tell_watched(self, events: list[Event]) -> None:
        """As `_tell`, with what guards let through of it. Raises Forbidden for what they do not."""
        guarded = self._guarded
        if guarded is None:
            await self._tell_policed(events)
            return
        for event in events:
            await self._tell_policed(await guarded.take(event))
            if guarded.forbidden is not None:
                raise guarded.forbidden

    async def _tell_policed(self, events: list[Event]) -> None:
        """As `_tell`, with the reasoning that the agent's policy hides left out or summarised."""
        policy = self._reasoning
        if policy is None:
            self._tell(events)
            return
        for event in events:
            self._keep(event)
            for shown in await policy.shown(event):
                self._shown.add(shown)
                self._emit(shown)
                if self._told is not None:
                    self._told(shown)

    def _keep(self, event: Event) -> None:
        """Add one of the model's events to this turn's messages, and send it to the run's readers."""
        if isinstance(event, RunError):
            raise Unreadable(event.message, event.code)
        self._written.add(event)
        if self._follow is not None:
            self._follow(event)


def goes_on(input: RunAgentInput) -> bool:
    """Whether a run goes on with work that an earlier one began: it brings a person's answer, or a result of a
    client's tool."""
    return bool(input.resume) or (bool(input.messages) and input.messages[-1].role == "tool")


def _invalid(call: ToolCall, found: Invalid) -> dict[str, Any]:
    errors = [{"path": path, "message": message} for path, message in found.problems]
    return {"toolCallId": call.id, "toolCallName": call.function.name, "errors": errors}


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its tokens, which are only for readers of the stream."""
    metadata = without_tokens(message.get("metadata"))
    rest = {key: value for key, value in message.items() if key != "metadata"}
    return {**rest, "metadata": metadata} if metadata else rest
