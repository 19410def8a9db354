"""The generation core: commands in, one step after the other, replies out.

`step` is the whole engine on one screen. It runs in one thread and never waits for anything but the device; other
threads put commands into `inbox`.

With `overlap` a step is launched before the previous one's tokens are read, so that the device computes while the host
detokenizes; a generation that turns out to be over has then computed one token too many, which is dropped. Rows whose
mask depends on their last token are sampled after that token was read, while the model already computes their next
logits. With `run_ahead`, tokens that a grammar forces are delivered at once and computed as one chunk, together with
the token before them unless a launched step computes that one. Commands wait until nothing is in flight.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from queue import Empty

import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.core.commands import execute
from agent_server.generation.core.core import CoreState, InFlightStep, logprobs_of
from agent_server.generation.core.drafting import draft, speculates, trials_of, verify
from agent_server.generation.core.generation import Generation
from agent_server.generation.device import release_unused
from agent_server.generation.faults import first_line, out_of_memory, raise_if_lost
from agent_server.generation.scheduling.messages import Reply
from agent_server.generation.scheduling.sequence import Sequence, StepPlan

logger = logging.getLogger("agent_server.generation")
GRAMMAR_WAIT_SECONDS = 0.01
"""How long a step without work waits for a grammar that is being compiled."""
MIN_LATE_RUN = 3
"""Forced tokens for which the token of a step that was launched already is discarded. They take that step and one with
a chunk, which is longer than one that only decodes."""


@dataclass(eq=False)
class Core(CoreState):
    """A core that steps."""

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reply]]:
        """Run one step: schedule, forward, sample, deliver. Returns the replies by the generations' numbers."""
        # A cancelled generation must not get another step.
        self._drain_commands()
        if leases := self.scheduler.memory.leases:
            leases.expire(self.clock())
        if self.progress:
            now = self.clock()
            for number, processed in self.progress.take_completed():
                prefilling = self.generations.get(number)
                if prefilling is not None and (progress := prefilling.progress(processed, now)) is not None:
                    self.reply(number, progress)
        # A draft continues a sequence whose tokens are all known.
        if self.overlap and speculates(self):
            self._deliver_in_flight()
        draft(self)
        plan = self.scheduler.schedule()
        for sequence in self.scheduler.completed_prefills(plan):
            # A prefill-only generation ends without a token; its pages stay under its lease.
            generation = self.generations.pop(sequence.number)
            self.reply(sequence.number, generation.finished("length", self.clock()))
            self.scheduler.finish(sequence, keep_prefill=True)
            if self.loras is not None and sequence.adapter:
                self.loras.leave(sequence.adapter)
        self._clear_rows()
        launch = self._forward(plan)
        # Sampling follows the forward at once, unless a mask or steering depends on the tokens still in flight.
        sampled_rows = launch.sequences if launch is not None and self._in_flight is not None else ()
        if not any(self.generations[sequence.number].depends_on_last_token for sequence in sampled_rows):
            launch = self._sample(launch)
        self._deliver_in_flight(launch)
        launch = self._sample(launch)
        # The device computes this step while its replies are sent and the next one is scheduled.
        if self.overlap and (launch is None or launch.draft_logits is None):
            self._in_flight = launch
        else:
            self._deliver(launch)
        self._clear_rows()
        replies, self._replies = self._replies, []
        return replies

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute and nothing in flight; commands may wait in the inbox."""
        return self._in_flight is None and self.scheduler.idle and not self.preparing

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

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a command and execute it, while the core is idle. timeout: seconds."""
        with contextlib.suppress(Empty):
            execute(self, self.inbox.get(timeout=timeout))

    def _drain_commands(self) -> None:
        if self.inbox.empty():
            return
        # A command may end or move a sequence, so what is in flight for it is delivered first.
        self._deliver_in_flight()
        with contextlib.suppress(Empty):
            while True:
                execute(self, self.inbox.get_nowait())

    def _clear_rows(self) -> None:
        """Clear the sampler's rows that sequences gave back."""
        for row in self.scheduler.freed_rows:
            self.sampler.clear(row)
        self.scheduler.freed_rows.clear()

    def _forward(self, plan: StepPlan) -> InFlightStep | None:
        """Launch the forward of a plan. Masks of rows whose last tokens are known are filled meanwhile."""
        if not plan:
            # Nothing to compute: wait a moment for a grammar to be compiled or a picture to be prepared.
            if self._in_flight is None and (self.preparing or any(each.blocked for each in self.scheduler.running)):
                self.wait(GRAMMAR_WAIT_SECONDS)
            return None
        try:
            for chunk in plan.chunks:
                self._occupy_row(chunk.sequence)
            if self.masking is not None and self._in_flight is None:
                self.masking.begin([self.generations[sequence.number] for sequence in plan.sampled])
            with self.threads.timed(plan.tokens) if self.threads is not None else contextlib.nullcontext():
                sequences, logits = self.runner.forward(plan, self.sampler.last)
            # After the sampled logits come those of scored prompts, then those of drafts.
            logits, more = logits[: len(sequences)], logits[len(sequences) :]
            scored = 0
            for chunk in plan.chunks if len(more) else ():
                scores = self.generations[chunk.sequence.number].scores
                if scores is not None and chunk.scores:
                    scores.take(chunk.start, more[scored : scored + chunk.scores])
                    scored += chunk.scores
        except Exception as error:  # a model's code may raise anything: that fails this step, not the core
            self._recover(plan, error)
            return None
        # Only after the launch: a failed step must not enter the prefix cache.
        self.scheduler.commit(plan)
        for chunk in plan.chunks:
            if (generation := self.generations[chunk.sequence.number]).request.progress and not chunk.draft:
                self.progress.record(generation, chunk, self.sampler.device)
        if not sequences:
            return None
        positions = [len(sequence.tokens) - sequence.prompt_length - 1 for sequence in sequences]
        rows = [sequence.row for sequence in sequences]
        return InFlightStep(
            plan, sequences, rows, positions, logits, draft_logits=more[scored:] if len(more) > scored else None
        )

    def _occupy_row(self, sequence: Sequence) -> None:
        """Give a sequence that was just admitted its row of the sampler."""
        generation = self.generations[sequence.number]
        # A prompt of several chunks comes here once for each of them and has its row already.
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

    def _sample(self, launch: InFlightStep | None) -> InFlightStep | None:
        """Launch the sampling of a step, unless that was done."""
        if launch is None or launch.sampled is not None:
            return launch
        try:
            generations = [
                None if sequence in launch.replaced else self.generations.get(sequence.number)
                for sequence in launch.sequences
            ]
            masks = None if self.masking is None else self.masking.finish(generations)
            bonuses = [generation.bonus if generation is not None else {} for generation in generations]
            launch.sampled = self.sampler.sample(launch.take(), launch.rows, launch.positions, masks, bonuses)
        except Exception as error:
            self._recover(launch.plan, error)
            return None
        return launch

    def _deliver_in_flight(self, following: InFlightStep | None = None) -> None:
        """Deliver the tokens of the step in flight. following: the step that was launched after it."""
        launch, self._in_flight = self._in_flight, None
        self._deliver(launch, following)

    def _deliver(self, launch: InFlightStep | None, following: InFlightStep | None = None) -> None:
        """Wait for a step's tokens and deliver them to their generations."""
        if launch is None or launch.sampled is None:
            return
        self.counters.iterations_total += 1
        now = self.clock()
        launch.sampled.wait()
        tokens = launch.sampled.on_host
        logprobs = logprobs_of(tokens)
        trials = [] if launch.draft_logits is None else trials_of(launch.plan)
        for i, (sequence, token) in enumerate(zip(launch.sequences, tokens.tokens, strict=True)):
            # It ended with the previous step's token, after this step was launched: its token is dropped.
            if sequence.state == "finished" or sequence in launch.replaced:
                continue
            self.scheduler.settle(sequence, token)
            generation = self.generations[sequence.number]
            self.deliver(generation, token, now, *logprobs(i, generation.params.logprobs))
            if self.run_ahead and not trials:
                self._deliver_forced(generation, now, following)
        if launch.draft_logits is not None:
            verify(self, trials, launch.draft_logits, now)
            for sequence in launch.sequences if self.run_ahead else ():
                if sequence.state == "running":
                    self._deliver_forced(self.generations[sequence.number], now)

    def _deliver_forced(self, generation: Generation, now: float, following: InFlightStep | None = None) -> None:
        """Deliver the tokens that a grammar forces; the next step computes them as one chunk. following: the step that
        was launched after the one whose token was just delivered. It is not sampled yet."""
        sequence = generation.sequence
        if sequence.state == "running" and sequence.pending and following is not None:
            if len(generation.forced) < MIN_LATE_RUN:
                return
            self.scheduler.withdraw_token(sequence)
            following.replaced.add(sequence)
        while sequence.state == "running" and not sequence.pending and (tokens := generation.forced):
            self.scheduler.append(sequence, tokens[0])
            self.counters.forced_tokens_total += 1
            self.deliver(generation, tokens[0], now, None, None)

    def _recover(self, plan: StepPlan, error: Exception) -> None:
        """Recover from a failed step.

        A lost device needs another process. A step that ran out of memory is retried at half its size. Any other error
        ends the generations that can have caused it.
        """
        memory_error = out_of_memory(error)
        logger.error("A step failed: %s", first_line(error), exc_info=None if memory_error else error)
        # Masks that are being filled belong to a step that will not be sampled.
        if self.masking is not None:
            self.masking.abandon()
        raise_if_lost(error, self.sampler.device)
        self.scheduler.undo(plan)  # before tokens are delivered: a sequence that ends then has only what was computed
        self._deliver_in_flight()
        if memory_error:
            release_unused(self.sampler.device)
            if not self.scheduler.shrink_after_oom(plan):
                sequences = plan.decodes + [chunk.sequence for chunk in plan.chunks]
                message = "The engine ran out of memory for this generation, even alone and in small chunks."
                self._fail(sequences, EngineError("out_of_memory", message))
            return
        decoding = plan.decodes + [chunk.sequence for chunk in plan.chunks if chunk.draft]
        suspects = [chunk.sequence for chunk in plan.chunks if not chunk.draft] or decoding
        self._fail(suspects, EngineError("internal", "The generation ended because of a fault in the engine."))
        for sequence in decoding:
            if sequence.state == "running":  # the memory that a broken step wrote to is not to be trusted
                self.scheduler.preempt(sequence)

    def _fail(self, sequences: list[Sequence], error: EngineError) -> None:
        for sequence in sequences:
            if sequence.state != "finished":
                self.fail(self.generations[sequence.number], error)
