"""One turn of the model: prompt → engine → translator → events, and its output as messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import msgspec
from ag_ui.core import AudioPart, ImagePart, RunAgentInput
from opentelemetry.trace import SpanKind

from agent_server.agents.call_lists import CallList
from agent_server.agents.conversation import Conversation, without_repeated_calls
from agent_server.agents.early_calls import ReadAhead, TurnRequest
from agent_server.agents.guardrails import Forbidden, check_documents
from agent_server.agents.plain_answers import (
    RESULTS_GIVEN,
    UNMARKED_CALL,
    AnsweredCalls,
    PlainAnswer,
    ends_with_unmarked_calls,
    with_calls_as_written,
)
from agent_server.agents.turn_output import EmitEvent, TurnMessages, TurnOutput
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
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.media.intake import Intake, MediaMemory
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.constraints import ConstraintPlan, plan_constraint, refuse_early
from agent_server.models.prompting.output import open_translator, sampling_for
from agent_server.models.prompting.prompt import Prompts
from agent_server.models.prompting.thinking import thinking_budget
from agent_server.models.prompting.validation import validate
from agent_server.observability.tracing import PROVIDER, note, note_content, span, wants_content
from agent_server.pacing import PART
from agent_server.runs import RunContext
from agent_server.settings import OutputSettings
from events.message import to_dicts
from events.options import GenerationOptions, SamplingParams
from events.plain import PlainTranslator
from events.translator import Translator
from events.vocabulary import CONTROL_EVENT, INVALID_EVENT, LOADING_EVENT, PROGRESS_EVENT, Custom

LAST_MESSAGES = 16
"""How many of the prompt's last messages a trace with content includes."""


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
        """Load the model and keep it loaded for the block, around everything a turn uses of it.

        tell: called with the model's status while it is loading.
        """


class CannotContinue(Exception):
    """The engine cannot continue an answer that another server started."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A completed turn. `invalid`: id of a call → what is wrong with its arguments."""

    output: TurnMessages
    finished: Finished
    invalid: Mapping[str, str] = {}


class TurnTaker:
    """Takes turns of one model on behalf of one run.

    output: where the model's events go; one for all turns of a conversation. cache_key: the key under which the engine
    keeps the conversation's KV cache between turns; "" keeps none. journals: save the generated tokens in the run's
    journal.
    """

    def __init__(
        self,
        model: LanguageModel,
        context: RunContext,
        output: TurnOutput,
        *,
        cache_key: str = "",
        journals: bool = False,
    ) -> None:
        self._model = model
        self._journals = journals
        self._context = context
        self._recorder = context.recorder
        self._output = output
        self._emit = output.send
        self._guarded = output.guarded
        self._cache_key = cache_key
        self._call_kind = "tool_call"
        """The kind of the current turn's call ids."""

    async def take(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        on_event: EmitEvent | None = None,
        repeats_calls: bool = False,
    ) -> Turn:
        """Generate one turn.

        on_event: called with each of its events after it was sent. repeats_calls: whether the model may make a call
        again that was just answered.

        Raises EngineError, or Forbidden if a guard stops the output. On an error and on cancellation, open messages and
        calls have been closed.
        """
        self._output.begin(on_event)
        self._call_kind = "tool_call"
        if self._guarded is not None:
            # Token details would reveal text before the guards have read it, and tokens that were not sampled.
            if options.sampling.logprobs is not None:
                self._recorder.warn("Guards check the output, so tokens and their log probabilities are not returned.")
            sampling = msgspec.structs.replace(options.sampling, logprobs=None)
            options = msgspec.structs.replace(options, token_details=False, sampling=sampling)
        await self._context.controls.gate()
        async with self._model.use(self._emit_loading):
            model_name, thread = self._model.name, input.thread_id
            attributes = {"provider__name": PROVIDER, "request__model": model_name, "conversation__id": thread}
            with span("chat", model_name, SpanKind.CLIENT, **attributes) as turn_span:
                with self._model.intake.hold() as decoded_media:
                    turn = await self._take(input, options, instructions, decoded_media, repeats_calls)
                if turn_span.is_recording():
                    finished, sampling = turn.finished, options.sampling
                    note(
                        turn_span,
                        request__max_tokens=sampling.max_tokens,
                        request__temperature=sampling.temperature,
                        request__top_p=sampling.top_p,
                        response__model=self._model.name,
                        response__finish_reasons=[finished.reason],
                        response__time_to_first_chunk=finished.timings.first_token,
                        usage__input_tokens=finished.usage.prompt_tokens,
                        usage__output_tokens=finished.usage.completion_tokens,
                    )
                    if wants_content(turn_span):  # only then pay for serialising the messages
                        output = to_dicts(turn.output.messages)
                        note_content(
                            turn_span,
                            input__messages=to_dicts(input.messages[-LAST_MESSAGES:]),
                            output__messages=output,
                        )
                return turn

    async def context_length(self) -> int:
        """The context length in tokens, prompt and answer together: the model's, or the caller's limit if that is
        lower. Waits until the model is loaded."""
        async with self._model.use(self._emit_loading):
            own, limit = self._model.engine.info.context_length, self._context.options.most_context
            return min(own, limit) if limit else own

    async def prompt_length(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None) -> int:
        """The number of tokens in a turn's prompt, which may exceed the model's context."""
        async with self._model.use(self._emit_loading):
            return len((await self._prompt(input, options, instructions, fits=False)).token_ids)

    def read_ahead(self, conversation: Conversation, next_request: Callable[[], TurnRequest]) -> ReadAhead:
        """Compute the known beginning of the next prompt while a turn's calls run, if the engine can hold it."""
        can_hold_cache = self._cache_key and self._model.engine.info.cache_hold_seconds
        return ReadAhead(conversation, next_request, self._prompt, self._compute if can_hold_cache else None)

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

    def _emit_loading(self, status: EngineStatus) -> None:
        """Send the model's loading progress as a CUSTOM event; wires without such events only wait."""
        progress = {} if status.progress is None else {"progress": round(status.progress, 3)}
        value = {"model": self._model.name, "state": status.state, **progress, "message": status.message}
        self._emit(Custom(name=LOADING_EVENT, value=value))

    async def _take(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None,
        decoded_media: MediaMemory,
        repeats_calls: bool,
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
        plan = await plan_constraint(prompt, controls, input, options, settings, info)
        for warning in plan.warnings:
            recorder.warn(warning)
        if options.prompt_progress and not info.tells_progress:
            recorder.warn("This engine does not report the progress of a prompt.")
        if prompt.prediction and "num_speculative_tokens" not in info.sampling:
            recorder.warn("The prediction changes nothing: this engine does not speculate.")
        recorder.constrained = recorder.constrained or plan.constraint is not None
        room = self._room(len(prompt.token_ids))
        pictures, sounds = await self._media(prompt, options, decoded_media)
        request = GenerationRequest(
            request_id=context.new_id("gen"),
            prompt_token_ids=prompt.token_ids,
            sampling=limit_tokens(sampling_for(prompt, context.controls.sampling(budget.options.sampling)), room),
            constraint=plan.constraint,
            thought=budget.thought,
            priority=-options.priority,
            cache_salt=options.cache_salt,
            tenant=context.tenant,
            turn=recorder.turns + continues_earlier_run(context.input),
            pictures=pictures,
            sounds=sounds,
            adapter=self._model.adapter,
            cache_hold=CacheHold(conversation=self._cache_key) if self._cache_key and info.cache_hold_seconds else None,
            progress=options.prompt_progress and info.tells_progress,
            prediction=prompt.prediction,
        )
        # The part of this turn that an earlier server generated. A subagent has none, since the call that runs it is
        # made again.
        replayed_turn = recorder.journal.replayed if self._journals else None
        replayed = () if replayed_turn is None else replayed_turn.deltas
        plain_request = partial(self._plain_request, input, options, instructions, decoded_media)
        call_list = await self._call_list(request, plan, input, options, plain_request, repeats_calls)
        if replayed and call_list is not None:
            text = "".join(token.text for delta in replayed for token in delta.tokens)
            request = await call_list.replayed_request(request, text)
            call_list = None
        request = self._continue_request(request, replayed, info)
        recorder.turns += not replayed
        translator = open_translator(prompt, input, options, settings, self._new_id)
        # in a task of its own: a token wakes only this task, and not every coroutine up to the run's
        try:
            work = self._generate(request, translator, options.token_details, room, replayed, call_list)
            finished = await asyncio.create_task(work)
        except Forbidden:
            # Its tokens were computed, so they count.
            usage = Usage(prompt_tokens=len(prompt.token_ids), completion_tokens=self._output.tokens)
            recorder.count(self._model.name, Finished(reason="stop", usage=usage), self._output.reasoning_tokens)
            raise
        if finished.closed_string:
            recorder.warn("The model repeated itself in a string of its answer, which was ended for that reason.")
        for warning in translator.warnings if self._guarded is None else ():  # they may quote withheld text
            recorder.warn(warning)
        recorder.count(self._model.name, finished, self._output.reasoning_tokens)
        if options.token_details:
            recorder.describe_prompt(prompt.token_ids, finished)
            recorder.unsent = translator.unsent
        output = await self._output.complete()
        return Turn(output=output, finished=finished, invalid=await self._validate(output, input))

    async def _call_list(
        self,
        request: GenerationRequest,
        plan: ConstraintPlan,
        input: RunAgentInput,
        options: GenerationOptions,
        plain_request: Callable[[GenerationRequest], Awaitable[GenerationRequest]],
        repeats_calls: bool,
    ) -> CallList | None:
        """How the turn's calls are written as a list, if the model begins with one; None if the model decides.

        plain_request: returns the request for an answer from the prompt without tools.
        """
        begins_here = bool(input.messages) and input.messages[-1].role != "assistant"
        if plan.call_list is None or options.token_details or not begins_here:
            return None
        allowed = options.tool_choice.names
        tools = {tool.name: tool.parameters for tool in input.tools or () if not allowed or tool.name in allowed}
        plain_answer = None
        if options.tool_choice.mode == "auto" and ends_with_unmarked_calls(input.messages):
            answered = None
            if not repeats_calls:
                answered = await REQUEST_THREADS.run(AnsweredCalls, input.messages, input.tools or ())
            plain_answer = PlainAnswer(answered=answered, names=frozenset(tools))
        tokenize = partial(self._model.prompts.tokenize, add_special_tokens=False)

        def on_call() -> None:
            self._call_kind = UNMARKED_CALL

        call_list = CallList(
            grammar=plan.call_list,
            tools=tools,
            tokenize=tokenize,
            plain_request=plain_request,
            plain_answer=plain_answer,
            on_call=on_call,
        )
        return call_list if call_list.applies(request, self._model.engine.info) else None

    async def _plain_request(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None,
        decoded_media: MediaMemory,
        first: GenerationRequest,
    ) -> GenerationRequest:
        """The request for an answer from the prompt without tools, and without repeated calls, in place of another."""
        names = {tool.name for tool in input.tools or ()}
        messages, _ = await REQUEST_THREADS.run(without_repeated_calls, input.messages, names)
        input = input.model_copy(update={"messages": messages, "tools": []})
        if ends_with_unmarked_calls(input.messages):
            instructions = f"{instructions}\n\n{RESULTS_GIVEN}" if instructions else RESULTS_GIVEN
        prompt = await self._prompt(input, options, instructions)
        pictures, sounds = await self._media(prompt, options, decoded_media)
        return msgspec.structs.replace(
            first,
            request_id=f"{first.request_id}.answer",
            prompt_token_ids=prompt.token_ids,
            sampling=limit_tokens(first.sampling, self._room(len(prompt.token_ids))),
            constraint=None,
            pictures=pictures,
            sounds=sounds,
            cache_hold=None,
            prediction=(),
        )

    def _room(self, prompt_tokens: int) -> int:
        """The number of tokens left for the answer under the caller's limit and the model's context; 0: no limit."""
        model = self._model
        lengths = (self._context.options.most_context, model.engine.info.context_length, model.prompts.context_length)
        longest = min((each for each in lengths if each), default=0)
        return max(1, longest - prompt_tokens) if longest else 0

    def _new_id(self, kind: str) -> str:
        return self._context.new_id(self._call_kind if kind == "tool_call" else kind)

    @staticmethod
    def _continue_request(request: GenerationRequest, deltas: Sequence[Delta], info: EngineInfo) -> GenerationRequest:
        """The request that continues after the given deltas. Raises CannotContinue if the engine cannot."""
        if not deltas:
            return request
        generated = tuple(token.id for delta in deltas for token in delta.tokens)
        # The engine may still compute the answer under its old id.
        id = f"{request.request_id}.{len(generated)}"
        request = msgspec.structs.replace(request, request_id=id, generated=generated)
        if not may_continue(request, info):
            raise CannotContinue(f"the engine of {info.model} cannot continue an answer that another server started")
        return request

    async def _prompt(
        self, input: RunAgentInput, options: GenerationOptions, instructions: str | None, *, fits: bool = True
    ) -> Prompt:
        build = self._model.prompts.build_async
        # Summaries and subagents have options of their own, but the limit of the run's caller applies to them too.
        options = msgspec.structs.replace(options, most_context=self._context.options.most_context)
        takes = frozenset(self._model.engine.info.placeholders)
        messages = await self._model.intake.documents(input.messages, has_vision="image" in takes)
        if self._guarded is not None:
            await check_documents(self._guarded.guards, messages)
        if input.tools:
            messages = with_calls_as_written(messages)
        if messages != input.messages:
            input = input.model_copy(update={"messages": messages})
        if takes:
            return await build(input, options, instructions, takes=takes, fits=fits)
        return await build(input, options, instructions, fits=fits)

    async def _media(
        self, prompt: Prompt, options: GenerationOptions, decoded_media: MediaMemory
    ) -> tuple[tuple[Picture, ...], tuple[Sound, ...]]:
        """The pictures and sounds that the prompt has placeholders for. Raises EngineError."""
        if not prompt.media:
            return (), ()
        if options.sampling.prompt_logprobs is not None:
            message = "Log probabilities of prompt tokens are not available for prompts with images or audio."
            raise EngineError("invalid_request", message, param="prompt_logprobs")
        intake, info = self._model.intake, self._model.engine.info
        pictures = [part for part in prompt.media if isinstance(part, ImagePart)]
        sounds = [part for part in prompt.media if isinstance(part, AudioPart)]
        return await intake.pictures(pictures, decoded_media), await intake.sounds(sounds, info, decoded_media)

    async def _validate(self, output: TurnMessages, input: RunAgentInput) -> dict[str, str]:
        """Validate the calls' arguments against their schemas; warn clients and return the problems by call id."""
        schemas = {tool.name: tool.parameters for tool in input.tools or ()}
        invalid: dict[str, str] = {}
        for number, call in enumerate(output.calls, 1):
            if number % PART == 0:
                await asyncio.sleep(0)
            problem = await validate(call.function.arguments, schemas.get(call.function.name))
            if problem is not None:
                invalid[call.id] = str(problem)
                self._recorder.warn(f"The arguments of {call.function.name} do not fit its schema: {problem}")
                errors = [{"path": path, "message": message} for path, message in problem.problems]
                value = {"toolCallId": call.id, "toolCallName": call.function.name, "errors": errors}
                self._emit(Custom(name=INVALID_EVENT, value=value))
        return invalid

    def messages_so_far(self) -> TurnMessages:
        """The messages of the current turn so far, or of the last one, even if it failed or was cancelled."""
        return self._output.messages_so_far()

    async def _generate(
        self,
        request: GenerationRequest,
        translator: Translator | PlainTranslator,
        details: bool,
        room: int,
        replayed: Sequence[Delta] = (),
        call_list: CallList | None = None,
    ) -> Finished:
        """Stream the generation through the translator. replayed: deltas of an earlier server, whose events readers
        already have. call_list: how the turn's calls are written as a list; None if the model decides."""
        engine, controls, output = self._model.engine, self._context.controls, self._output
        journal = self._recorder.journal if self._journals else None
        finished: Finished | None = None
        reason, has_output, generated = "error", False, sum(len(delta.tokens) for delta in replayed)
        ids = [request.request_id]

        async def restart(second: GenerationRequest) -> GenerationRequest:
            """What was paused or changed during the first generation is so in the second."""
            await controls.gate()
            ids.append(second.request_id)
            room = self._room(len(second.prompt_token_ids))
            controls.attach(second.request_id, engine, room)
            return msgspec.structs.replace(second, sampling=limit_tokens(controls.sampling(second.sampling), room))

        stream = engine.generate(request) if call_list is None else call_list.generate(engine, request, restart)
        controls.attach(request.request_id, engine, room)
        try:
            for delta in replayed:
                output.tokens += len(delta.tokens)
                await output.emit_filtered(output.read(delta, translator, details))
            async with contextlib.aclosing(stream) as items:
                async for item in items:
                    if isinstance(item, Delta):
                        if not has_output:
                            has_output = True
                            self._recorder.first_token()
                        if journal is not None:
                            journal.add(item)
                        events = output.read(item, translator, details)
                        generated += len(item.tokens)
                        if output.filtered:
                            output.tokens += len(item.tokens)
                            await output.emit_filtered(events)
                        else:  # nothing to await, so avoid a coroutine per token
                            output.emit(events)
                        if self._recorder.journal.is_bursting:
                            await self._recorder.journal.pause()
                        if translator.ended:
                            # Leaving the stream ends the generation, and the engine then reports no usage.
                            usage = Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=generated)
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
            for id in ids:
                controls.detach(id)
            if finished is None:
                output.skip_summaries()
            await output.finish(translator, reason, None if finished is None else finished.stop)
        if finished is None:
            raise EngineError("connection", "The engine's stream ended without a finish reason.", retryable=True)
        return finished


def limit_tokens(sampling: SamplingParams, room: int) -> SamplingParams:
    """The sampling parameters with max_tokens limited to `room`; 0: no limit."""
    if not room or (sampling.max_tokens is not None and sampling.max_tokens <= room):
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))


def continues_earlier_run(input: RunAgentInput) -> bool:
    """Whether a run continues the work of an earlier one: its input has a person's answer, or a result of a client's
    tool."""
    return bool(input.resume) or (bool(input.messages) and input.messages[-1].role == "tool")
