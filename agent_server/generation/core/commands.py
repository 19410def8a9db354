"""What may be asked of a core between two steps: submit, cancel, pause, resume, modify, and a grammar that is ready."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from agent_server.engine_protocol.continuation import already_ended
from agent_server.engine_protocol.protocol import (
    Control,
    Delta,
    EngineError,
    Finished,
    GenerationRequest,
    Token,
    Usage,
    changed_sampling,
    check_length,
)
from agent_server.generation.core.constraint import Matcher, lost
from agent_server.generation.core.generation import Generation, begin, limit_of
from agent_server.generation.faults import first_line
from agent_server.generation.lora.lora import Adapters
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.scheduling.messages import (
    Adopted,
    Cancel,
    Command,
    Compiled,
    Failed,
    LoadLora,
    Modify,
    Pause,
    Prepared,
    Resume,
    StopWorker,
    Submit,
    UnloadLora,
)

if TYPE_CHECKING:
    from agent_server.generation.core.core import CoreState

logger = logging.getLogger("agent_server.generation")


def carry_out(core: CoreState, command: Command | Compiled | Prepared) -> None:
    """Carry out one command of the event loop's. A command for a generation that has ended does nothing."""
    if isinstance(command, Submit):
        _submit(core, command.number, command.request)
        return
    if isinstance(command, Prepared):
        _begin_prepared(core, command)
        return
    if isinstance(command, LoadLora | UnloadLora):
        _change_lora(core, command)
        return
    if (number := getattr(command, "number", -1)) in core.preparing:
        # A command for a generation whose media are not prepared yet.
        if isinstance(command, Cancel):
            del core.preparing[number]
        elif not isinstance(command, Compiled):
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
        case Compiled(grammar=grammar, error=error):
            _enter(core, generation, grammar, error)


def _submit(core: CoreState, number: int, request: GenerationRequest) -> None:
    try:
        # Raise what is wrong with the request; it is that request's error alone.
        _check_room(core, request)
        for noun, kind, given in (("pictures", "image", request.pictures), ("sounds", "audio", request.sounds)):
            if given and (core.multimodal is None or kind not in core.multimodal.readers):
                raise EngineError("invalid_request", f"This model takes no {noun}.", param="messages")
        outside = [t for t in request.prompt_token_ids if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.generated if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.sampling.allowed_token_ids if not 0 <= t < core.limits.vocab_size]
        outside += [t for t in request.sampling.logit_bias if not 0 <= t < core.limits.vocab_size]
        if outside:
            raise EngineError("invalid_request", f"Token id {outside[0]} is not in this model's vocabulary.")
        if request.cache_hold is not None and request.cache_hold.prefill_only and request.constraint is not None:
            raise EngineError("invalid_request", "What fills a place generates nothing, so it takes no grammar.")
        if request.constraint is not None and core.compiler is None:
            raise EngineError("invalid_request", "This engine has no grammars.", param="response_format")
        if _queue_is_full(core, fills=request.cache_hold is not None and request.cache_hold.prefill_only):
            raise EngineError("overloaded", "The queue is full.", retryable=True)
    except EngineError as error:
        core.say(number, Failed.of(error))
        return
    if request.pictures or request.sounds:
        assert core.multimodal is not None
        core.preparing[number] = []
        core.multimodal.begin(request, partial(_prepared, core, number), partial(_unprepared, core, number, request))
        return
    _enqueue(core, number, request)


def _adapters(core: CoreState) -> Adapters:
    if core.adapters is None:
        message = "This model is decoded on caches of its own, where rows cannot have adapters of their own"
        raise EngineError("invalid_request", f"{message}; serve it with --adapter.", param="model")
    return core.adapters


def _change_lora(core: CoreState, command: LoadLora | UnloadLora) -> None:
    """Load or remove an adapter, and say how it went."""
    try:
        if isinstance(command, LoadLora):
            _adapters(core).load(command.name, command.folder)
        else:
            _adapters(core).remove(command.name)
        core.say(command.number, Adopted())
    except EngineError as error:
        core.say(command.number, Failed.of(error))
    except Exception as error:  # a file may hold anything: that is no fault of the core's
        message = f"The adapter cannot be loaded: {first_line(error)}"
        core.say(command.number, Failed("unavailable", message))


def _prepared(core: CoreState, number: int, request: GenerationRequest, media: MediaInputs) -> None:
    """Called from the thread that prepares media."""
    core.inbox.put(Prepared(number, request, media))


def _unprepared(core: CoreState, number: int, request: GenerationRequest, error: EngineError) -> None:
    """Called from the thread that prepares media."""
    core.inbox.put(Prepared(number, request, failure=Failed.of(error)))


def _begin_prepared(core: CoreState, ready: Prepared) -> None:
    """A request's media are prepared, and its prompt is as long as it will be."""
    if ready.number not in core.preparing:  # cancelled meanwhile
        return
    deferred = core.preparing.pop(ready.number)
    try:
        if ready.failure is not None:
            raise ready.failure.error()
        _check_room(core, ready.request)
    except EngineError as error:
        core.say(ready.number, Failed.of(error))
        return
    _enqueue(core, ready.number, ready.request, ready.media)
    for command in deferred:
        carry_out(core, command)


def _enqueue(core: CoreState, number: int, request: GenerationRequest, media: MediaInputs | None = None) -> None:
    longest = min(core.limits.context_length, core.scheduler.memory.longest)
    if request.cache_hold is not None and request.cache_hold.prefill_only and request.cache_hold.ttl <= 0:
        core.scheduler.memory.leases.end((request.tenant, request.cache_hold.conversation))
        core.say(number, Finished(reason="length", usage=Usage()))
        return
    try:
        adapter = _adapters(core).enter(request.adapter) if request.adapter else ""
    except EngineError as error:
        core.say(number, Failed.of(error))
        return
    generation = begin(number, request, core.vocabulary, core.defaults, longest, core.clock(), media, adapter)
    core.generations[number] = generation
    ended = already_ended(request, generation.output, generation.eos, longest - len(request.prompt_token_ids))
    if ended is not None:
        generation.stopped_on = ended.stop
        core.finish(generation, ended.reason)
        return
    generation.sequence.held = request.constraint is not None or generation.sequence.terms is not None
    core.scheduler.add(generation.sequence)
    if request.constraint is not None:
        assert core.compiler is not None
        core.compiler.compile(request.constraint, partial(_compiled, core, number))


def _compiled(core: CoreState, number: int, grammar: object, error: str | None) -> None:
    """Called from the compiler's thread."""
    core.inbox.put(Compiled(number, grammar, error))


def _enter(core: CoreState, generation: Generation, grammar: object, error: str | None) -> None:
    """A compiled constraint: the generation may get its first token."""
    if error is not None:
        core.fail(generation, EngineError("invalid_request", error, param="response_format"))
        return
    matcher: Matcher = grammar.matcher()  # type: ignore[attr-defined]
    if not all(matcher.accept(token) for token in generation.request.generated):
        core.fail(generation, lost(matcher))
    elif generation.request.generated and matcher.finished:
        core.finish(generation, "stop")
    else:
        generation.matcher = matcher
        generation.sequence.held = False


def _queue_is_full(core: CoreState, *, fills: bool) -> bool:
    """Whether one more may not wait. What is only to fill a place never waits in the queue, so that it takes no place
    from what generates: it comes in where a row is free for it, and is not counted."""
    free = core.scheduler.max_running - len(core.scheduler.running)
    if fills:
        return core.waiting >= free
    most = core.limits.max_queued + free
    if core.waiting < most:
        return False
    filling = sum(s.state == "waiting" and s.terms is not None for s in core.scheduler.iterate())
    return core.waiting - filling >= most


def _check_room(core: CoreState, request: GenerationRequest) -> None:
    check_length(request, core.limits.context_length)
    needed = len(request.prompt_token_ids) + len(request.generated) + 1
    if needed > core.scheduler.memory.longest:
        room = core.scheduler.memory.longest
        message = f"The prompt has {needed - 1} tokens; the memory for keys and values holds {room}."
        raise EngineError("out_of_memory", message, param="prompt")


def _modify(core: CoreState, generation: Generation, changes: dict[str, object]) -> None:
    sequence = generation.sequence
    try:
        params = changed_sampling(generation.params, changes)
    except EngineError:
        logger.warning("A modification that does not hold was ignored.")
        return
    generation.apply(params)
    generation.output.restrict(params.stop, params.min_tokens)
    longest = min(core.limits.context_length, core.scheduler.memory.longest)
    sequence.limit = limit_of(sequence.prompt_length, params, longest)
    if sequence.row >= 0:
        core.configure(generation)
    _acknowledge(core, generation, "modified")
    if sequence.known >= sequence.limit:
        core.say(generation.number, *_delta(generation.output.drain()))
        core.finish(generation, "length")


def _acknowledge(core: CoreState, generation: Generation, action: str) -> None:
    core.say(generation.number, Control(action=action, position=generation.generated))  # type: ignore[arg-type]


def _delta(tokens: list[Token]) -> tuple[Delta, ...]:
    return (Delta(tuple(tokens)),) if tokens else ()
