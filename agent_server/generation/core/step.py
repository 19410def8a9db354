"""The generation core: commands in, one step after the other, replies out.

`step` is the whole engine on one screen. It runs in one thread and never waits for anything but the device; what
other threads want from it they put into `inbox`.

With `overlap` a step is launched before the previous one's tokens are looked at, so that the device computes while
the host detokenises; a generation that turns out to be over has then computed one token too many, which is dropped.
Rows whose mask depends on their last token are sampled after that token was looked at, while the model already
computes their next logits. With `run_ahead`, which needs that nothing overlaps, tokens that a grammar leaves no choice
about are not waited for: they are delivered at once and computed together with the token before them. Commands wait
until nothing is in flight.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from queue import Empty

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.core.commands import carry_out
from agent_server.generation.core.core import CoreState, InFlightStep, details_of
from agent_server.generation.core.generation import Generation
from agent_server.generation.core.guessing import draft, speculates, trials, verify
from agent_server.generation.device import release_unused
from agent_server.generation.faults import first_line, out_of_memory, raise_if_lost
from agent_server.generation.scheduling.messages import Reply
from agent_server.generation.scheduling.sequence import Sequence, StepPlan

logger = logging.getLogger("agent_server.generation")
HELD_SECONDS = 0.01
"""How long a step without work waits for a grammar that is being compiled."""


@dataclass(eq=False)
class Core(CoreState):
    """A core that steps."""

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """One step: obey, schedule, run, sample, deliver. Returns what there is to say."""
        # Commands first: a generation that was cancelled must not get another step.
        self._obey()
        self._end_leases()
        if self.progress:
            self._tell_progress()
        if self.overlap and speculates(self):
            self._land_first()
        draft(self)
        plan = self.scheduler.plan()
        for sequence in self.scheduler.filled(plan):
            self._fill(self.generations[sequence.number])
        self._vacate()
        flight = self._run(plan)
        # The sampler's part follows the model's at once, unless a grammar's mask depends on the tokens still in flight.
        if not self._waits(flight):
            flight = self._sample(flight)
        self._land_first()
        flight = self._sample(flight)
        # The device computes this step while its replies are sent and the next one is planned.
        if self.overlap and (flight is None or flight.guessed is None):
            self._flight = flight
        else:
            self._land(flight)
        self._vacate()
        replies, self._replies = self._replies, []
        return replies

    def _end_leases(self) -> None:
        leases = self.scheduler.memory.leases
        if leases:
            leases.expire(self.clock())

    def _tell_progress(self) -> None:
        now = self.clock()
        for number, processed in self.progress.reached():
            generation = self.generations.get(number)
            if generation is not None and (told := generation.progress(processed, now)) is not None:
                self.say(number, told)

    def _fill(self, generation: Generation) -> None:
        """What a place needs is computed, and kept there."""
        self.say(generation.number, generation.finished("length", self.clock()))
        del self.generations[generation.number]
        self.scheduler.finish(generation.sequence, filled=True)

    def _rest(self) -> None:
        """Nothing to compute: where a grammar is being compiled or a picture prepared, wait a moment for it."""
        if self._flight is None and (self.preparing or any(sequence.held for sequence in self.scheduler.running)):
            self.wait(HELD_SECONDS)

    def _vacate(self) -> None:
        """Clear the rows that sequences gave back, by whatever way."""
        for row in self.scheduler.vacated:
            self.sampler.clear(row)
        self.scheduler.vacated.clear()

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing in flight; commands may wait in the inbox."""
        return self._flight is None and self.scheduler.idle and not self.preparing

    def metrics(self) -> dict[str, float]:
        values = self.counters.values()
        values.update(self.compiler.counts if self.compiler is not None else {})
        values["num_requests_running"] = float(len(self.scheduler.running))
        values["num_requests_waiting"] = float(self.waiting)
        values["num_requests_paused"] = float(len(self.scheduler.paused))
        values["num_preemptions_total"] = float(self.scheduler.preemptions)
        values["kv_cache_usage_perc"] = self.scheduler.memory.usage
        values.update(self.scheduler.memory.leases.metrics())
        return values

    # commands

    def wait(self, timeout: float | None = None) -> None:
        """Until there is a command; for a core that is idle."""
        with contextlib.suppress(Empty):
            carry_out(self, self.inbox.get(timeout=timeout))

    def _obey(self) -> None:
        if self.inbox.empty():
            return
        # A command may end or move a sequence; what is in flight for it is delivered before.
        self._land_first()
        with contextlib.suppress(Empty):
            while True:
                carry_out(self, self.inbox.get_nowait())

    # a step

    def _run(self, plan: StepPlan) -> InFlightStep | None:
        """Launch the model's part of a plan. Masks whose rows' last tokens are known are filled beside it."""
        if not plan:
            self._rest()
            return None
        try:
            for chunk in plan.chunks:
                self._begin(chunk.sequence)
            if self.masking is not None and self._flight is None:
                self.masking.begin([self.generations[sequence.number] for sequence in plan.sampled])
            with self.threads.timed(plan.tokens) if self.threads is not None else contextlib.nullcontext():
                sequences, logits = self.runner.run(plan, self.sampler.last)
            logits, more = logits[: len(sequences)], logits[len(sequences) :]
            scored = self._score(plan, more) if len(more) else 0
        except Exception as error:  # a model's code may raise anything: that fails this step, not the core
            self._blame(plan, error)
            return None
        # Not before the launch: what failed must not be found by other prompts.
        self.scheduler.commit(plan)
        for chunk in plan.chunks:
            if (generation := self.generations[chunk.sequence.number]).request.progress and not chunk.draft:
                self.progress.launched(generation, chunk, self.sampler.device)
        if not sequences:
            return None
        positions = [len(sequence.tokens) - sequence.prompt_length - 1 for sequence in sequences]
        guessed = more[scored:] if len(more) > scored else None
        return InFlightStep(
            plan, sequences, [sequence.row for sequence in sequences], positions, logits, guessed=guessed
        )

    def _score(self, plan: StepPlan, logits: Tensor) -> int:
        """Hand the logits behind those that are sampled from to the prompts that are scored by them; returns how many
        they are."""
        at = 0
        for chunk in plan.chunks:
            scores = self.generations[chunk.sequence.number].scores
            if scores is not None and chunk.scores:
                scores.take(chunk.start, logits[at : at + chunk.scores])
                at += chunk.scores
        return at

    def _waits(self, flight: InFlightStep | None) -> bool:
        """Whether the flight's next tokens depend on tokens which are still in flight."""
        if flight is None or self._flight is None:
            return False
        return any(self.generations[sequence.number].follows for sequence in flight.sequences)

    def _sample(self, flight: InFlightStep | None) -> InFlightStep | None:
        """Launch the sampler's part, if that was not done."""
        if flight is None or flight.sampled is not None:
            return flight
        try:
            generations = [self.generations.get(sequence.number) for sequence in flight.sequences]
            masks = None if self.masking is None else self.masking.finish(generations)
            bonuses = [generation.bonus if generation is not None else {} for generation in generations]
            flight.sampled = self.sampler.sample(flight.take(), flight.rows, flight.positions, masks, bonuses)
        except Exception as error:
            self._blame(flight.plan, error)
            return None
        return flight

    def _begin(self, sequence: Sequence) -> None:
        """Settle a sequence that was just admitted into its row."""
        generation = self.generations[sequence.number]
        # A prompt of several chunks comes here with each of them; its row is its own already.
        if self.sampler.occupants[sequence.row] == sequence.number:
            return
        self.configure(generation)
        if generation.started is None:
            generation.started = self.clock()
            if sequence.terms is not None:
                return
            self.counters.prompt_tokens_total += sequence.prompt_length
            self.counters.prefix_cache_queries_total += sequence.prompt_length
            self.counters.prefix_cache_hits_total += sequence.cached or 0
            self.counters.request_queue_time_seconds_sum += generation.started - generation.arrived
            self.counters.request_queue_time_seconds_count += 1

    def _land_first(self) -> None:
        """Deliver what is in flight."""
        flight, self._flight = self._flight, None
        self._land(flight)

    def _land(self, flight: InFlightStep | None) -> None:
        """Deliver a step's tokens."""
        if flight is None or flight.sampled is None:
            return
        self.counters.iterations_total += 1
        now = self.clock()
        flight.sampled.wait()
        landed = flight.sampled.landed
        details = details_of(landed)
        tried = [] if flight.guessed is None else trials(flight.plan)
        for place, (sequence, token) in enumerate(zip(flight.sequences, landed.tokens, strict=True)):
            # It ended when the step before landed, and this one was launched by then; its token belongs to nothing.
            if sequence.state == "finished":
                continue
            self.scheduler.settle(sequence, token)
            generation = self.generations[sequence.number]
            self.deliver(generation, token, now, *details(place, generation.params.logprobs))
            if self.run_ahead and not tried:
                self._run_ahead(generation, now)
        if flight.guessed is not None:
            verify(self, tried, flight.guessed, now)
            for sequence in flight.sequences if self.run_ahead else ():
                if sequence.state == "running":
                    self._run_ahead(self.generations[sequence.number], now)

    def _run_ahead(self, generation: Generation, now: float) -> None:
        """Deliver what a grammar leaves no choice about; the model computes it as one chunk in the next step."""
        sequence = generation.sequence
        while sequence.state == "running" and not sequence.pending and (token := generation.forced) is not None:
            self.scheduler.append(sequence, token)
            self.counters.forced_tokens_total += 1
            self.deliver(generation, token, now, None, None)

    def _blame(self, plan: StepPlan, error: Exception) -> None:
        """What follows from a step that failed: another process where the device is gone, a smaller step where memory
        was too little, else the end of the generations that have to answer for it."""
        short = out_of_memory(error)
        logger.error("A step failed: %s", first_line(error), exc_info=None if short else error)
        # Masks that were begun are of a step that will not be sampled.
        if self.masking is not None:
            self.masking.abandon()
        raise_if_lost(error, self.sampler.device)
        self.scheduler.undo(plan)  # before tokens land: a sequence that ends then has only what was computed
        self._land_first()
        if not short:
            decoding = plan.decodes + [chunk.sequence for chunk in plan.chunks if chunk.draft]
            guilty = [chunk.sequence for chunk in plan.chunks if not chunk.draft] or decoding
            self._end(guilty, EngineError("internal", "The generation ended because of a fault in the engine."))
            for sequence in decoding:
                if sequence.state == "running":  # what a broken step left in its memory is not to be trusted
                    self.scheduler.preempt(sequence)
            return
        release_unused(self.sampler.device)
        sequences = plan.decodes + [chunk.sequence for chunk in plan.chunks]
        if not self.scheduler.strain(plan):
            message = "The generation ended because of too little memory in the engine, even alone and in small pieces."
            self._end(sequences, EngineError("out_of_memory", message))

    def _end(self, sequences: list[Sequence], error: EngineError) -> None:
        for sequence in sequences:
            if sequence.state != "finished":
                self.fail(self.generations[sequence.number], error)
