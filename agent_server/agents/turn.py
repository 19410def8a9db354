"""One turn of the model: prompt → engine → translator → events, and what the turn said as messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
from ag_ui.core import AudioPart, ImagePart, RunAgentInput, ToolCall
from opentelemetry.trace import Span, SpanKind

from agent_server.agents.conversation import Conversation
from agent_server.agents.early_calls import Asked, ReadAhead
from agent_server.agents.guardrails import Forbidden, GuardedStream, check_documents
from agent_server.agents.reasoning_policy import ReasoningPolicy
from agent_server.agents.tool_search import declared
from agent_server.agents.turn_output import Tell, TurnMessages, TurnOutput
from agent_server.engine_protocol.continuation import may_continue
from agent_server.engine_protocol.protocol import (
    CacheHold,
    Control,
    Delta,
    Engine,
    EngineError,
    EngineInfo,
    EngineStatus,
    Finished,
    GenerationRequest,
    Picture,
    Progress,
    Sound,
    Usage,
)
from agent_server.media.intake import Held, Intake
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.constraints import plan_constraint, refuse_early
from agent_server.models.prompting.output import open_translator, sampling_for
from agent_server.models.prompting.prompt import Prompts
from agent_server.models.prompting.schemas import Invalid, validate
from agent_server.models.prompting.thinking import thinking_budget
from agent_server.observability.tracing import PROVIDER, note, note_content, span, wants_content
from agent_server.pacing import PART
from agent_server.runs import Recorder, RunContext
from agent_server.settings import OutputSettings
from events.message import to_dicts
from events.options import GenerationOptions, SamplingParams
from events.plain import PlainTranslator
from events.translator import Translator
from events.vocabulary import CONTROL_EVENT, INVALID_EVENT, LOADING_EVENT, PROGRESS_EVENT, Custom

LAST_MESSAGES = 16
"""Messages of the prompt that a trace with content has."""


class LanguageModel(Protocol):
    """A model as a turn needs it; `agent_server.models.model.ChatModel` is one."""

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


class CannotContinue(Exception):
    """The engine cannot go on with an answer that another server began."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that came to its end. `invalid`: id of a call → what is wrong with its arguments."""

    said: TurnMessages
    finished: Finished
    invalid: Mapping[str, str] = {}


class TurnTaker:
    """Takes turns of one model on behalf of one run.

    cache_key: the name under which the engine keeps the conversation's computed tokens between turns; "" keeps none.
    emit: where events go (a subagent's are marked on the way). follow: sees every event of the model's before it is
    sent on. guarded: what the model says goes through it first; what it does not let through is nowhere else, and ends
    the turn with Forbidden. journals: what the turn generates
    is saved beside the stream. `said()` also tells what an unfinished turn said before it failed or was cancelled.
    """

    def __init__(
        self,
        model: LanguageModel,
        context: RunContext,
        recorder: Recorder,
        emit: Tell,
        *,
        reasoning: ReasoningPolicy | None = None,
        follow: Tell | None = None,
        cache_key: str = "",
        guarded: GuardedStream | None = None,
        journals: bool = False,
    ) -> None:
        self._model = model
        self._journals = journals
        self._context = context
        self._recorder = recorder
        self._emit = emit
        self._reasoning = reasoning
        self._follow = follow
        self._cache_key = cache_key
        self._guarded = guarded
        self._output = self._new_output(None)
        self._said: TurnMessages | None = None  # of a turn that came to its end

    async def take(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        told: Tell | None = None,
    ) -> Turn:
        """Generate one turn. told: sees every event of it behind its sending. Raises EngineError, or Forbidden for
        what a guard stops; on these and on cancellation what is open has been closed."""
        self._output, self._said = self._new_output(told), None
        if self._guarded is not None:
            # Without the details of tokens: they spell what guards are to read first, and what was not even chosen.
            if options.sampling.logprobs is not None:
                self._recorder.warn("Guards read what is said, so tokens and their log probabilities are not given.")
            sampling = msgspec.structs.replace(options.sampling, logprobs=None)
            options = msgspec.structs.replace(options, token_details=False, sampling=sampling)
        await self._context.controls.gate()
        async with self._model.use(self._tell_loading):
            of, thread = self._model.name, input.thread_id
            named = {"provider__name": PROVIDER, "request__model": of, "conversation__id": thread}
            with span("chat", of, SpanKind.CLIENT, **named) as traced:
                with self._model.intake.hold() as held:
                    turn = await self._take(input, options, instructions, held)
                self._trace(traced, turn, input, options)
                return turn

    async def context_length(self) -> int:
        """Tokens that the model takes and the caller may have, prompt and answer together. Waits until it is loaded."""
        async with self._model.use(self._tell_loading):
            own, most = self._model.engine.info.context_length, self._context.options.most_context
            return min(own, most) if most else own

    async def prompt_length(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> int:
        """Tokens of the prompt of a turn, which may be more than the model takes."""
        async with self._model.use(self._tell_loading):
            return len((await self._prompt(input, options, instructions, fits=False)).token_ids)

    def _new_output(self, told: Tell | None) -> TurnOutput:
        return TurnOutput(self._emit, reasoning=self._reasoning, follow=self._follow, guarded=self._guarded, told=told)

    def ahead(self, conversation: Conversation, asked: Callable[[], Asked]) -> ReadAhead:
        """Around the calls of a turn: what is known of the next one (`asked`) is read ahead, where the engine can."""
        keeps = self._cache_key and self._model.engine.info.cache_hold_seconds
        return ReadAhead(conversation, asked, self._prompt, self._compute if keeps else None)

    async def _compute(self, beginning: tuple[int, ...], options: GenerationOptions) -> None:
        async with self._model.use(lambda status: None):
            engine = self._model.engine
            hold = CacheHold(conversation=self._cache_key, prefill_only=True, ttl=engine.info.cache_hold_seconds)
            request = GenerationRequest(
                request_id=self._context.new_id("ahead"),
                prompt_token_ids=beginning,
                sampling=SamplingParams(),
                tenant=self._context.tenant,
                priority=-options.priority,
                cache_salt=options.cache_salt,
                adapter=self._model.adapter,
                cache_hold=hold,
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
        if wants_content(traced):  # else nothing is written out that nobody gets
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
        recorder.note_prompt(prompt.token_ids, with_ids=context.options.token_details)
        info = self._model.engine.info
        analysis = self._model.prompts.analysis(bool(input.tools)) if options.reasoning_effort else None
        budget = thinking_budget(prompt.output_format, prompt.opened, analysis, options, info)
        for warning in (*prompt.warnings, *budget.warnings):
            recorder.warn(warning)
        controls = self._model.prompts.control_ids
        planned = await plan_constraint(prompt, controls, input, options, settings, info)
        for warning in planned.warnings:
            recorder.warn(warning)
        if options.prompt_progress and not info.tells_progress:
            recorder.warn("This engine does not tell how far a prompt is.")
        recorder.constrained = recorder.constrained or planned.constraint is not None
        room = self._room(prompt, options, info)
        pictures, sounds = await self._media(prompt, options, held)
        request = GenerationRequest(
            request_id=context.new_id("gen"),
            prompt_token_ids=prompt.token_ids,
            sampling=within(sampling_for(prompt, context.controls.sampling(budget.options)), room),
            constraint=planned.constraint,
            thought=budget.thought,
            priority=-options.priority,
            cache_salt=options.cache_salt,
            tenant=context.tenant,
            turn=recorder.turns + goes_on(context.input),
            pictures=pictures,
            sounds=sounds,
            adapter=self._model.adapter,
            cache_hold=CacheHold(conversation=self._cache_key) if self._cache_key and info.cache_hold_seconds else None,
            progress=options.prompt_progress and info.tells_progress,
        )
        replayed = self._resumed()
        request = self._continuing(request, replayed, info)
        recorder.turns += not replayed
        translator = open_translator(prompt, input, options, settings, context.new_id)
        # in a task of its own: a token wakes this one and not the whole chain of those who wait for the run
        try:
            work = self._generate(request, translator, options.token_details, room, replayed)
            finished = await asyncio.create_task(work)
        except Forbidden:
            self._count_stopped(len(prompt.token_ids))
            raise
        for warning in translator.warnings if self._guarded is None else ():  # they may quote what was withheld
            recorder.warn(warning)
        recorder.count(self._model.name, finished, self._output.reasoning_tokens)
        if options.token_details:
            recorder.describe_prompt(prompt.token_ids, finished)
            recorder.unsent = translator.unsent
        said = self._said = await self._output.messages_yielding()
        return Turn(said=said, finished=finished, invalid=await self._validate(said, input))

    def _room(self, prompt: Prompt, options: GenerationOptions, info: EngineInfo) -> int:
        """Tokens that are left for the answer: of what the caller may have, and of the model's context where the answer
        is to be fitted into it; 0: any."""
        own = (info.context_length, self._model.prompts.context_length) if options.fit_answer else ()
        most = min((each for each in (self._context.options.most_context, *own) if each), default=0)
        return max(1, most - len(prompt.token_ids)) if most else 0

    def _resumed(self) -> Sequence[Delta]:
        """What an earlier server has generated of this turn. A subagent's is part of a call, which is made again."""
        turn = self._recorder.journal.replayed
        return () if turn is None or not self._journals else turn.deltas

    @staticmethod
    def _continuing(request: GenerationRequest, begun: Sequence[Delta], info: EngineInfo) -> GenerationRequest:
        """The request behind what was generated. Raises CannotContinue."""
        if not begun:
            return request
        generated = tuple(token.id for delta in begun for token in delta.tokens)
        # The engine may still compute the answer under its old id.
        id = f"{request.request_id}.{len(generated)}"
        request = msgspec.structs.replace(request, request_id=id, generated=generated)
        if not may_continue(request, info):
            raise CannotContinue(f"the engine of {info.model} cannot continue an answer that another server began")
        return request

    def _count_stopped(self, prompt_tokens: int) -> None:
        """Count a generation that a guard stopped: its tokens were computed."""
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self._output.tokens)
        finished = Finished(reason="stop", usage=usage)
        self._recorder.count(self._model.name, finished, self._output.reasoning_tokens)

    async def _prompt(
        self, input: RunAgentInput, options: GenerationOptions, instructions: str | None, *, fits: bool = True
    ) -> Prompt:
        build = self._model.prompts.build_async
        # Summaries and subagents have options of their own, and are held to what the run's caller may have.
        options = msgspec.structs.replace(options, most_context=self._context.options.most_context)
        takes = frozenset(self._model.engine.info.placeholders)
        messages = await self._model.intake.documents(input.messages, sees="image" in takes)
        if self._guarded is not None:
            await check_documents(self._guarded.guards, messages)
        tools = declared(input.tools or ())
        if messages != input.messages or len(tools) != len(input.tools or ()):
            input = input.model_copy(update={"messages": messages, "tools": tools})
        if takes:
            return await build(input, options, instructions, takes=takes, fits=fits)
        return await build(input, options, instructions, fits=fits)

    async def _media(
        self, prompt: Prompt, options: GenerationOptions, held: Held
    ) -> tuple[tuple[Picture, ...], tuple[Sound, ...]]:
        """The pictures and sounds that the prompt has places for. Raises EngineError."""
        if not prompt.media:
            return (), ()
        if options.sampling.prompt_logprobs is not None:
            message = "The tokens of a prompt with pictures or sounds have no log probabilities here."
            raise EngineError("invalid_request", message, param="prompt_logprobs")
        intake, info = self._model.intake, self._model.engine.info
        pictures = [part for part in prompt.media if isinstance(part, ImagePart)]
        sounds = [part for part in prompt.media if isinstance(part, AudioPart)]
        return await intake.pictures(pictures, held), await intake.sounds(sounds, info, held)

    async def _validate(self, said: TurnMessages, input: RunAgentInput) -> dict[str, str]:
        """What is wrong with the calls' arguments, by the calls' ids; clients are told as well."""
        schemas = {tool.name: tool.parameters for tool in input.tools or ()}
        invalid: dict[str, str] = {}
        for number, call in enumerate(said.calls, 1):
            if number % PART == 0:
                await asyncio.sleep(0)
            found = await validate(call.function.arguments, schemas.get(call.function.name))
            if found is not None:
                invalid[call.id] = str(found)
                self._recorder.warn(f"The arguments of {call.function.name} do not fit its schema: {found}")
                self._emit(Custom(name=INVALID_EVENT, value=_invalid(call, found)))
        return invalid

    def said(self) -> TurnMessages:
        """What the turn under way, or the last one, said so far."""
        return self._output.said() if self._said is None else self._said

    async def _generate(
        self,
        request: GenerationRequest,
        translator: Translator | PlainTranslator,
        details: bool,
        room: int,
        replayed: Sequence[Delta] = (),
    ) -> Finished:
        """replayed: deltas of an earlier server, whose events readers have."""
        engine, controls, output = self._model.engine, self._context.controls, self._output
        journal = self._recorder.journal if self._journals else None
        finished: Finished | None = None
        reason, begun, made = "error", False, sum(len(delta.tokens) for delta in replayed)
        controls.attach(request.request_id, engine, room)
        try:
            for delta in replayed:
                output.tokens += len(delta.tokens)
                await output.tell_watched(output.read(delta, translator, details))
            async with contextlib.aclosing(engine.generate(request)) as items:
                async for item in items:
                    if isinstance(item, Delta):
                        if not begun:
                            begun = True
                            self._recorder.first_token()
                        if journal is not None:
                            journal.add(item)
                        events = output.read(item, translator, details)
                        made += len(item.tokens)
                        if output.watched:
                            output.tokens += len(item.tokens)
                            await output.tell_watched(events)
                        else:  # nothing to wait for, so no coroutine for every token
                            output.tell(events)
                        if translator.ended:
                            # Leaving the stream ends the generation; the engine no longer says what it cost.
                            usage = Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=made)
                            finished, reason = Finished(reason="stop", usage=usage), "stop"
                            break
                    elif isinstance(item, Finished):
                        finished, reason = item, item.reason
                    elif isinstance(item, Control):
                        self._emit(Custom(name=CONTROL_EVENT, value=msgspec.structs.asdict(item)))
                    elif isinstance(item, Progress):
                        self._emit(Custom(name=PROGRESS_EVENT, value=msgspec.structs.asdict(item)))
        except asyncio.CancelledError:
            reason = "cancelled"
            raise
        finally:
            controls.detach(request.request_id)
            if finished is None:
                output.hurry()
            await output.tell_end(translator, reason, None if finished is None else finished.stop)
        if finished is None:
            raise EngineError("connection", "The engine ended a generation without saying how.", retryable=True)
        return finished


def within(sampling: SamplingParams, room: int) -> SamplingParams:
    """The sampling of an answer of at most `room` tokens; 0: any."""
    if not room or (sampling.max_tokens is not None and sampling.max_tokens <= room):
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))


def goes_on(input: RunAgentInput) -> bool:
    """Whether a run goes on with work that an earlier one began: it brings a person's answer, or a result of a
    client's tool."""
    return bool(input.resume) or (bool(input.messages) and input.messages[-1].role == "tool")


def _invalid(call: ToolCall, found: Invalid) -> dict[str, object]:
    errors = [{"path": path, "message": message} for path, message in found.problems]
    return {"toolCallId": call.id, "toolCallName": call.function.name, "errors": errors}
