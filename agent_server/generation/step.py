"""The generation core: commands in, one step after the other, replies out.

`step` is the whole engine on one screen. It runs in one thread and never waits for anything but the device; what
other threads want from it they put into `inbox`.

With `overlap` a step is launched before the previous one's tokens are looked at, so that the device computes while
the host detokenises; a generation that turns out to be over has then computed one token too many, which is dropped.
Commands, and rows whose next mask depends on their last token, wait until nothing is in flight.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

import torch

from agent_server.engine.checks import changed_sampling, check_length
from agent_server.engine.continuing import already_ended
from agent_server.engine.detokenizer import Vocabulary
from agent_server.engine.protocol import Control, Delta, EngineError, FinishReason, GenerationRequest, Token
from agent_server.generation.constraint import Compiler, Matcher
from agent_server.generation.flight import Flight, details_of
from agent_server.generation.generation import Defaults, Generation, Limits, begin, limit_of
from agent_server.generation.messages import (
    Cancel,
    Command,
    Compiled,
    Failure,
    Modify,
    Pause,
    Reply,
    Resume,
    Stop,
    Submit,
)
from agent_server.generation.metrics import Counters
from agent_server.generation.runner import Runner
from agent_server.generation.sampler import Masks, Sampled, Sampler
from agent_server.generation.scheduler import Plan, Scheduler
from agent_server.generation.sequence import Sequence

logger = logging.getLogger("agent_server.generation")
HELD_SECONDS = 0.01
"""How long a step without work waits for a grammar that is being compiled."""


@dataclass(eq=False)
class Core:
    """Everything that one loaded model needs to generate."""

    runner: Runner
    scheduler: Scheduler
    sampler: Sampler
    vocabulary: Vocabulary
    defaults: Defaults
    limits: Limits
    compiler: Compiler | None = None
    overlap: bool = False
    clock: Callable[[], float] = time.monotonic
    counters: Counters = field(default_factory=Counters)
    inbox: SimpleQueue[Command | Compiled] = field(default_factory=SimpleQueue)
    stopped: bool = False
    generations: dict[int, Generation] = field(default_factory=dict)
    _replies: list[tuple[int, Reply]] = field(default_factory=list)
    _flight: Flight | None = None

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """One step: obey, schedule, run, sample, deliver. Returns what there is to say."""
        self._obey()
        plan = self.scheduler.plan()
        self._vacate()
        flight = self._launch(plan) if plan else None
        if not plan:
            self._rest()
        if not self.overlap or self._constrained:
            self._land(self._flight)
            self._land(flight)
            self._flight = None
        else:
            self._land(self._flight)
            self._flight = flight
        self._vacate()
        replies, self._replies = self._replies, []
        return replies

    def _rest(self) -> None:
        """Nothing to compute: where a grammar is being compiled, wait a moment for it."""
        if self._flight is None and any(sequence.held for sequence in self.scheduler.running):
            self.wait(HELD_SECONDS)

    def _vacate(self) -> None:
        """Clear the rows that sequences gave back, by whatever way."""
        for row in self.scheduler.vacated:
            self.sampler.clear(row)
        self.scheduler.vacated.clear()

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing in flight; commands may wait in the inbox."""
        return self._flight is None and self.scheduler.idle

    @property
    def _constrained(self) -> bool:
        if self.compiler is None:
            return False
        return any(self.generations[sequence.number].matcher is not None for sequence in self.scheduler.running)

    def metrics(self) -> dict[str, float]:
        values = self.counters.values()
        values.update(self.compiler.counts if self.compiler is not None else {})
        values["num_requests_running"] = float(len(self.scheduler.running))
        values["num_requests_waiting"] = float(self._waiting)
        values["num_requests_paused"] = float(len(self.scheduler.paused))
        values["num_preemptions_total"] = float(self.scheduler.preemptions)
        values["kv_cache_usage_perc"] = self.scheduler.memory.usage
        return values

    @property
    def _waiting(self) -> int:
        return len(self.generations) - len(self.scheduler.running) - len(self.scheduler.paused)

    # commands

    def wait(self, timeout: float | None = None) -> None:
        """Until there is a command; for a core that is idle."""
        with contextlib.suppress(Empty):
            self._carry_out(self.inbox.get(timeout=timeout))

    def _obey(self) -> None:
        if self.inbox.empty():
            return
        self._land(self._flight)
        self._flight = None
        with contextlib.suppress(Empty):
            while True:
                self._carry_out(self.inbox.get_nowait())

    def _carry_out(self, command: Command | Compiled) -> None:
        if isinstance(command, Submit):
            self._submit(command.number, command.request)
            return
        self.stopped = self.stopped or isinstance(command, Stop)
        generation = self.generations.get(getattr(command, "number", -1))
        if generation is None:
            return
        match command:
            case Cancel():
                self._drop(generation)
            case Pause():
                self._pause(generation)
            case Resume():
                self._resume(generation)
            case Modify(changes=changes):
                self._modify(generation, changes)
            case Compiled(grammar=grammar, error=error):
                self._enter(generation, grammar, error)

    def _submit(self, number: int, request: GenerationRequest) -> None:
        try:
            self._check(request)
        except EngineError as error:
            self._say(number, Failure.of(error))
            return
        longest = min(self.limits.context_length, self.scheduler.memory.longest)
        generation = begin(number, request, self.vocabulary, self.defaults, longest, self.clock())
        self.generations[number] = generation
        ended = already_ended(request, generation.output, generation.eos, longest - len(request.prompt_token_ids))
        if ended is not None:
            generation.stopped_on = ended.stop
            self._finish(generation, ended.reason)
            return
        generation.sequence.held = request.constraint is not None
        self.scheduler.add(generation.sequence)
        if request.constraint is not None:
            assert self.compiler is not None
            self.compiler.compile(request.constraint, partial(self._compiled, number))

    def _compiled(self, number: int, grammar: object, error: str | None) -> None:
        """Called from the compiler's thread."""
        self.inbox.put(Compiled(number, grammar, error))

    def _enter(self, generation: Generation, grammar: object, error: str | None) -> None:
        """A compiled constraint: the generation may get its first token."""
        if error is not None:
            self._fail(generation, EngineError("invalid_request", error, param="response_format"))
            return
        matcher: Matcher = grammar.matcher()  # type: ignore[attr-defined]
        if not all(matcher.accept(token) for token in generation.request.generated):
            self._fail(generation, _lost(matcher))
        elif generation.request.generated and matcher.finished:
            self._finish(generation, "stop")
        else:
            generation.matcher = matcher
            generation.sequence.held = False

    def _check(self, request: GenerationRequest) -> None:
        """Raise what is wrong with the request; it is that request's error alone."""
        check_length(request, self.limits.context_length)
        needed = len(request.prompt_token_ids) + len(request.generated) + 1
        if needed > self.scheduler.memory.longest:
            room = self.scheduler.memory.longest
            message = f"The prompt has {needed - 1} tokens; the memory for keys and values holds {room}."
            raise EngineError("out_of_memory", message, param="prompt")
        outside = [t for t in request.prompt_token_ids if not 0 <= t < self.limits.vocab_size]
        outside += [t for t in request.generated if not 0 <= t < self.limits.vocab_size]
        outside += [t for t in request.sampling.logit_bias if not 0 <= t < self.limits.vocab_size]
        if outside:
            raise EngineError("invalid_request", f"Token id {outside[0]} is not in this model's vocabulary.")
        if request.constraint is not None and self.compiler is None:
            raise EngineError("invalid_request", "This engine has no grammars.", param="response_format")
        free = self.scheduler.max_running - len(self.scheduler.running)
        if self._waiting >= self.limits.max_queued + free:
            raise EngineError("overloaded", "The queue is full.", retryable=True)

    def _pause(self, generation: Generation) -> None:
        if generation.sequence.state in ("waiting", "running"):
            self.scheduler.pause(generation.sequence)
            self._acknowledge(generation, "paused")

    def _resume(self, generation: Generation) -> None:
        if generation.sequence.state == "paused":
            self.scheduler.resume(generation.sequence)
            self._acknowledge(generation, "resumed")

    def _modify(self, generation: Generation, changes: dict[str, object]) -> None:
        sequence = generation.sequence
        try:
            params = changed_sampling(generation.params, changes)
        except EngineError:
            logger.warning("A modification that does not hold was ignored.")
            return
        generation.apply(params)
        generation.output.restrict(params.stop, params.min_tokens)
        longest = min(self.limits.context_length, self.scheduler.memory.longest)
        sequence.limit = limit_of(sequence.prompt_length, params, longest)
        if sequence.row >= 0:
            self._configure(generation)
        self._acknowledge(generation, "modified")
        if sequence.known >= sequence.limit:
            self._say(generation.number, *_delta(generation.output.drain()))
            self._finish(generation, "length")

    def _acknowledge(self, generation: Generation, action: str) -> None:
        self._say(generation.number, Control(action=action, position=generation.generated))  # type: ignore[arg-type]

    # a step

    def _launch(self, plan: Plan) -> Flight | None:
        """Run the plan and sample. A failure is that of the prompts in it, if there are any; the others go on."""
        try:
            for chunk in plan.chunks:
                self._begin(chunk.sequence)
            sequences, logits = self.runner.run(plan, self.sampler.last)
            return Flight(plan, sequences, self._sample(sequences, logits)) if sequences else None
        except (RuntimeError, ValueError, IndexError, MemoryError, NotImplementedError) as error:
            self._blame(plan, error)
            return None

    def _begin(self, sequence: Sequence) -> None:
        """Settle a sequence that was just admitted into its row."""
        generation = self.generations[sequence.number]
        if self.sampler.occupants[sequence.row] == sequence.number:
            return
        self._configure(generation)
        if generation.started is None:
            generation.started = self.clock()
            self.counters.prompt_tokens_total += sequence.prompt_length
            self.counters.prefix_cache_queries_total += sequence.prompt_length
            self.counters.prefix_cache_hits_total += sequence.cached or 0
            self.counters.request_queue_time_seconds_sum += generation.started - generation.arrived
            self.counters.request_queue_time_seconds_count += 1

    def _configure(self, generation: Generation) -> None:
        sequence = generation.sequence
        prompt = sequence.tokens[: sequence.prompt_length]
        output = sequence.tokens[sequence.prompt_length : sequence.known]
        self.sampler.set(sequence.row, sequence.number, generation.settings, prompt, output)

    def _sample(self, sequences: list[Sequence], logits: torch.Tensor) -> Sampled:
        rows = [sequence.row for sequence in sequences]
        positions = [len(sequence.tokens) - sequence.prompt_length - 1 for sequence in sequences]
        return self.sampler.sample(logits, rows, positions, self._masks(sequences, logits.shape[-1]))

    def _masks(self, sequences: list[Sequence], vocab_size: int) -> Masks | None:
        if self.compiler is None:
            return None
        generations = [self.generations[sequence.number] for sequence in sequences]
        places = [place for place, generation in enumerate(generations) if generation.matcher is not None]
        if not places:
            return None
        bits = torch.full((len(places), -(-vocab_size // 32)), -1, dtype=torch.int32)
        matchers = [matcher for generation in generations if (matcher := generation.matcher) is not None]
        self.compiler.fill(matchers, [generations[place].ends for place in places], bits)
        return Masks(bits, places)

    def _land(self, flight: Flight | None) -> None:
        """Deliver a step's tokens."""
        if flight is None:
            return
        self.counters.iterations_total += 1
        now = self.clock()
        flight.sampled.wait()
        details = details_of(flight.sampled)
        tokens = flight.sampled.tokens.tolist()
        for place, (sequence, token) in enumerate(zip(flight.sequences, tokens, strict=True)):
            if sequence.state == "finished":
                continue
            self.scheduler.settle(sequence, token)
            generation = self.generations[sequence.number]
            self._deliver(generation, token, now, *details(place, generation.params.logprobs))

    def _deliver(
        self,
        generation: Generation,
        token: int,
        now: float,
        logprob: float | None,
        alternatives: list[tuple[int, float]] | None,
    ) -> None:
        sequence = generation.sequence
        self.counters.generation_tokens_total += 1
        if generation.first is None:
            generation.first = now
            self.counters.time_to_first_token_seconds_sum += now - generation.arrived
            self.counters.time_to_first_token_seconds_count += 1
        ends = token in generation.ends
        matcher = generation.matcher
        if matcher is not None and not ends and not matcher.accept(token):
            self._fail(generation, _lost(matcher))
            return
        complete = matcher is not None and not ends and matcher.finished
        full = sequence.known >= sequence.limit
        output = generation.output
        tokens = output.push(token, logprob, alternatives, ends=ends, last=full or complete)
        if tokens:
            self._replies.append((generation.number, Delta(tuple(tokens))))
        if output.stopped is not None:
            generation.stopped_on = output.stopped
        elif ends:
            generation.stopped_on = None if token in generation.eos else token
        elif not full and not complete:
            return
        self._finish(generation, "stop" if ends or complete or output.stopped is not None else "length")

    # endings

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        now = self.clock()
        if generation.first is not None and generation.generated > 1:
            self.counters.time_per_output_token_seconds_sum += now - generation.first
            self.counters.time_per_output_token_seconds_count += generation.generated - 1
        self._say(generation.number, generation.finished(reason, now))
        self._drop(generation)

    def _fail(self, generation: Generation, error: EngineError) -> None:
        self._say(generation.number, Failure.of(error))
        self._drop(generation)

    def _drop(self, generation: Generation) -> None:
        """Out of the core, with everything that it holds."""
        del self.generations[generation.number]
        self.scheduler.finish(generation.sequence)

    def _blame(self, plan: Plan, error: Exception) -> None:
        """End the generations that a failed step has to answer for."""
        logger.exception("A step failed.")
        self._land(self._flight)
        self._flight = None
        self.scheduler.undo(plan)
        exhausted = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        kind, reason = ("out_of_memory", "too little memory") if exhausted else ("internal", "a fault")
        guilty = [chunk.sequence for chunk in plan.chunks] or plan.decodes
        for sequence in guilty:
            if sequence.state != "finished":
                failure = EngineError(kind, f"The generation ended because of {reason} in the engine.")  # type: ignore[arg-type]
                self._fail(self.generations[sequence.number], failure)
        for sequence in plan.decodes:
            if sequence.state == "running":  # what a broken step left in its memory is not to be trusted
                self.scheduler.preempt(sequence)

    def end_all(self, error: EngineError) -> list[tuple[int, Reply]]:
        """Every generation fails; for a core that goes away."""
        for generation in list(self.generations.values()):
            self._fail(generation, error)
        replies, self._replies = self._replies, []
        return replies

    def _say(self, number: int, *replies: Reply) -> None:
        self._replies.extend((number, reply) for reply in replies)


def _lost(matcher: Matcher) -> EngineError:
    """A grammar that cannot go on. Its masks allow what it accepts, so this is a limit it ran into."""
    logger.warning("A grammar could not go on: %s", matcher.error)
    return EngineError("invalid_request", "The grammar needs too much work to go on.", param="response_format")


def _delta(tokens: list[Token]) -> tuple[Delta, ...]:
    return (Delta(tuple(tokens)),) if tokens else ()
