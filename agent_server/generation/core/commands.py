"""The commands that a core executes between two steps: submit, cancel, pause, resume, modify, load or unload a LoRA
adapter, and the results of its own threads (compiled grammars and prepared media)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from agent_server.engine_protocol.continuation import already_ended
from agent_server.engine_protocol.protocol import (
    Control,
    Delta,
    EngineError,
    Finished,
    GenerationRequest,
    Usage,
    changed_sampling,
    check_length,
)
from agent_server.generation.core.constraint import Matcher, matcher_failure
from agent_server.generation.core.generation import Generation, begin, limit_of
from agent_server.generation.faults import first_line
from agent_server.generation.lora.lora import Loras
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.scheduling.messages import (
    Cancel,
    Command,
    ConstraintCompiled,
    LoadLora,
    LoraCommandDone,
    MediaPrepared,
    Modify,
    Pause,
    RequestFailed,
    Resume,
    StopWorker,
    Submit,
    UnloadLora,
)

if TYPE_CHECKING:
    from agent_server.generation.core.core import CoreState

logger = logging.getLogger("agent_server.generation")


def execute(core: CoreState, command: Command | ConstraintCompiled | MediaPrepared) -> None:
    """Execute one command. A command for a generation that has ended does nothing."""
    if isinstance(command, Submit):
        _submit(core, command.number, command.request)
        return
    if isinstance(command, MediaPrepared):
        _begin_prepared(core, command)
        return
    if isinstance(command, LoadLora | UnloadLora):
        try:
            if isinstance(command, LoadLora):
                _loras(core).load(command.name, command.folder)
            else:
                _loras(core).remove(command.name)
            core.reply(command.number, LoraCommandDone())
        except EngineError as failure:
            core.reply(command.number, RequestFailed.of(failure))
        except Exception as failure:  # a file may contain anything; that is no error of the core
            message = f"The adapter cannot be loaded: {first_line(failure)}"
            core.reply(command.number, RequestFailed("unavailable", message))
        return
    if (number := getattr(command, "number", -1)) in core.preparing:
        # A command for a generation whose media are not prepared yet.
        if isinstance(command, Cancel):
            del core.preparing[number]
        elif not isinstance(command, ConstraintCompiled):
            core.preparing[number].append(command)
        return
    core.stopped = core.stopped or isinstance(command, StopWorker)
    generation = core.generations.get(getattr(command, "number", -1))
    if generation is None:
        return
    match command:
        case Cancel():
            core.drop(generation)
        case Pause():
            if generation.sequence.state in ("waiting", "running"):
                core.scheduler.pause(generation.sequence)
                _acknowledge(core, generation, "paused")
        case Resume():
            if generation.sequence.state == "paused":
                core.scheduler.resume(generation.sequence)
                _acknowledge(core, generation, "resumed")
        case Modify(changes=changes):
            _modify(core, generation, changes)
        case ConstraintCompiled(grammar=grammar, error=error):
            # The generation may get its first token once it has its grammar.
            if error is not None:
                core.fail(generation, EngineError("invalid_request", error, param="response_format"))
                return
            matcher: Matcher = grammar.matcher()
            if not all(matcher.accept(token) for token in generation.request.generated):
                core.fail(generation, matcher_failure(matcher))
            elif generation.request.generated and matcher.finished:
                core.finish(generation, "stop")
            else:
                generation.matcher = matcher
                generation.sequence.blocked = False


def _submit(core: CoreState, number: int, request: GenerationRequest) -> None:
    try:
        # An error in the request fails only that request.
        _check_room(core, request)
        for noun, kind, media in (("pictures", "image", request.pictures), ("sounds", "audio", request.sounds)):
            if media and (core.multimodal is None or kind not in core.multimodal.readers):
                raise EngineError("invalid_request", f"This model does not accept {noun}.", param="messages")
        outside = [t for t in request.prompt_token_ids if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.generated if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.sampling.allowed_token_ids if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.sampling.logit_bias if not 0 <= t < core.limits.vocab_size]
        if outside:
            raise EngineError("invalid_request", f"Token id {outside[0]} is not in this model's vocabulary.")
        if request.cache_hold is not None and request.cache_hold.prefill_only and request.constraint is not None:
            raise EngineError("invalid_request", "A prefill-only request generates nothing, so it takes no grammar.")
        if request.constraint is not None and core.compiler is None:
            message = "This engine does not support grammars."
            raise EngineError("invalid_request", message, param="response_format")
        # A prefill-only request is accepted only if a row is free for it. It does not count, so that it takes no place
        # in the queue from a request that generates.
        waiting, most = core.waiting, core.scheduler.max_running - len(core.scheduler.running)
        if request.cache_hold is None or not request.cache_hold.prefill_only:
            most += core.limits.max_queued
            if waiting >= most:
                waiting -= sum(s.state == "waiting" and s.terms is not None for s in core.scheduler.iterate())
        if waiting >= most:
            raise EngineError("overloaded", "The queue is full. Try again later.", retryable=True)
    except EngineError as error:
        core.reply(number, RequestFailed.of(error))
        return
    if request.pictures or request.sounds:
        assert core.multimodal is not None
        core.preparing[number] = []
        # Both are called from the thread that prepares media.
        core.multimodal.begin(
            request,
            lambda expanded, media: core.inbox.put(MediaPrepared(number, expanded, media)),
            lambda error: core.inbox.put(MediaPrepared(number, request, failure=RequestFailed.of(error))),
        )
        return
    _enqueue(core, number, request)


def _loras(core: CoreState) -> Loras:
    if core.loras is None:
        message = "This model does not support LoRA adapters per request. Serve it with --adapter instead."
        raise EngineError("invalid_request", message, param="model")
    return core.loras


def _begin_prepared(core: CoreState, ready: MediaPrepared) -> None:
    """Enqueue a request whose media are prepared, so that the length of its prompt is final."""
    if ready.number not in core.preparing:  # cancelled meanwhile
        return
    deferred, request = core.preparing.pop(ready.number), ready.request
    # Beside a placeholder for each medium, `max_tokens` fitted; what they leave is known only now.
    left, sampling = core.limits.context_length - len(request.prompt_token_ids), request.sampling
    if sampling.max_tokens is not None and 0 < left < sampling.max_tokens:
        fitted = msgspec.structs.replace(sampling, max_tokens=left, min_tokens=min(sampling.min_tokens, left))
        request = msgspec.structs.replace(request, sampling=fitted)
    try:
        if ready.failure is not None:
            raise ready.failure.error()
        _check_room(core, request)
    except EngineError as error:
        core.reply(ready.number, RequestFailed.of(error))
        return
    _enqueue(core, ready.number, request, ready.media)
    for command in deferred:
        execute(core, command)


def _enqueue(core: CoreState, number: int, request: GenerationRequest, media: MediaInputs | None = None) -> None:
    longest = min(core.limits.context_length, core.scheduler.memory.longest)
    if request.cache_hold is not None and request.cache_hold.prefill_only and request.cache_hold.ttl <= 0:
        core.scheduler.memory.leases.end((request.tenant, request.cache_hold.conversation))
        core.reply(number, Finished(reason="length", usage=Usage()))
        return
    try:
        adapter = _loras(core).enter(request.adapter) if request.adapter else ""
    except EngineError as error:
        core.reply(number, RequestFailed.of(error))
        return
    generation = begin(number, request, core.vocabulary, core.defaults, longest, core.clock(), media, adapter)
    core.generations[number] = generation
    ended = already_ended(request, generation.output, generation.eos, longest - len(request.prompt_token_ids))
    if ended is not None:
        generation.stopped_on = ended.stop
        core.finish(generation, ended.reason)
        return
    generation.sequence.blocked = request.constraint is not None or generation.sequence.terms is not None
    core.scheduler.add(generation.sequence)
    if request.constraint is not None:
        assert core.compiler is not None
        # Called from the compiler's thread.
        core.compiler.compile(request.constraint, lambda *result: core.inbox.put(ConstraintCompiled(number, *result)))


def _check_room(core: CoreState, request: GenerationRequest) -> None:
    check_length(request, core.limits.context_length)
    needed = len(request.prompt_token_ids) + len(request.generated) + 1
    if needed > core.scheduler.memory.longest:
        room = core.scheduler.memory.longest
        message = f"The prompt has {needed - 1} tokens; the engine's cache of keys and values holds {room}."
        raise EngineError("out_of_memory", message, param="prompt")


def _modify(core: CoreState, generation: Generation, changes: dict[str, object]) -> None:
    sequence = generation.sequence
    try:
        params = changed_sampling(generation.params, changes)
    except EngineError as error:
        logger.warning("Ignored an invalid change of sampling parameters: %s", error)
        return
    generation.apply(params)
    generation.output.restrict(params.stop, params.min_tokens)
    longest = min(core.limits.context_length, core.scheduler.memory.longest)
    sequence.limit = limit_of(sequence.prompt_length, params, longest)
    if sequence.row >= 0:
        core.configure(generation)
    _acknowledge(core, generation, "modified")
    if sequence.known >= sequence.limit:
        if tokens := generation.output.drain():
            core.reply(generation.number, Delta(tuple(tokens)))
        core.finish(generation, "length")


def _acknowledge(core: CoreState, generation: Generation, action: str) -> None:
    core.reply(generation.number, Control(action=action, position=generation.generated))  # type: ignore[arg-type]
