"""The core's state: its generations, the step in flight, and how a generation advances or ends.

`step.py` has the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engine_protocol.protocol import Delta, EngineError, FinishReason
from agent_server.generation.core.constraint import Compiler, matcher_failure
from agent_server.generation.core.draft_model import DraftModel
from agent_server.generation.core.generation import CoreLimits, Defaults, Generation
from agent_server.generation.core.masking import Masking
from agent_server.generation.core.threads import ThreadChoice
from agent_server.generation.execution.runner import Runner
from agent_server.generation.lora.lora import Loras
from agent_server.generation.multimodal.multimodal import Multimodal
from agent_server.generation.sampling.sampler import SampledTokens, Sampler, TokensOnHost
from agent_server.generation.scheduling.messages import (
    Command,
    ConstraintCompiled,
    Counters,
    MediaPrepared,
    Reply,
    RequestFailed,
)
from agent_server.generation.scheduling.scheduler import Scheduler
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan


@dataclass(slots=True)
class InFlightStep:
    """A step that was launched: the sequences that get a token, their rows, the tokens' positions in their answers, the
    logits, and later the sampled tokens. draft_logits: the logits after the plan's draft tokens. replaced: the
    sequences whose tokens are not needed, since forced ones took their place after the launch."""

    plan: StepPlan
    sequences: list[Sequence]
    rows: list[int]
    positions: list[int]
    logits: Tensor | None
    sampled: SampledTokens | None = None
    draft_logits: Tensor | None = None
    replaced: set[Sequence] = field(default_factory=set)

    def take(self) -> Tensor:
        """Return the logits and drop them, since they are needed only once."""
        logits, self.logits = self.logits, None
        assert logits is not None
        return logits


def logprobs_of(
    tokens: TokensOnHost,
) -> Callable[[int, int | None], tuple[float | None, list[tuple[int, float]] | None]]:
    """Return a function that takes an index in the batch and the number of alternatives, and returns the token's log
    probability and its alternatives, each as (id, log probability)."""
    if tokens.logprobs is None:
        return lambda index, count: (None, None)
    logprobs = tokens.logprobs
    ids, values = ([], []) if tokens.top is None else tokens.top

    def of(index: int, count: int | None) -> tuple[float | None, list[tuple[int, float]] | None]:
        if count is None:
            return None, None
        pairs = list(zip(ids[index][:count], values[index][:count], strict=True)) if ids else []
        return logprobs[index], pairs

    return of


class PromptProgress:
    """The progress of prompts on the device. `record` notes a launched chunk, `take_completed` returns what has been
    computed since the last call. False while no chunk is noted."""

    def __init__(self) -> None:
        self._marks: list[tuple[torch.cuda.Event | None, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._marks)

    def record(self, generation: Generation, chunk: Chunk, device: torch.device) -> None:
        """Note a launched chunk. A prompt's last chunk is reported with its first token."""
        if generation.reported_tokens < 0:
            self._marks.append((None, generation.number, chunk.start))
        if chunk.samples:
            return
        mark = None
        if device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(device))
        self._marks.append((mark, generation.number, chunk.start + chunk.length))

    def take_completed(self) -> list[tuple[int, int]]:
        """Return generations' numbers, and how many tokens of their prompts are computed, in launch order."""
        ahead = (i for i, (mark, _, _) in enumerate(self._marks) if mark is not None and not mark.query())  # type: ignore[no-untyped-call]
        done = next(ahead, len(self._marks))
        completed, self._marks = self._marks[:done], self._marks[done:]
        return [(number, tokens) for _, number, tokens in completed]


@dataclass(eq=False)
class CoreState:
    """Everything that one loaded model needs to generate. preparing: requests whose pictures or sounds are being
    prepared, with the commands that wait for that."""

    runner: Runner
    scheduler: Scheduler
    sampler: Sampler
    vocabulary: Vocabulary
    defaults: Defaults
    limits: CoreLimits
    compiler: Compiler | None = None
    multimodal: Multimodal | None = None
    loras: Loras | None = None
    draft_model: DraftModel | None = None
    overlap: bool = False
    run_ahead: bool = False
    threads: ThreadChoice | None = None
    record: Callable[[], None] | None = None
    """Records the model's forward, which takes seconds; called when the core is idle."""
    clock: Callable[[], float] = time.monotonic
    counters: Counters = field(default_factory=Counters)
    inbox: SimpleQueue[Command | ConstraintCompiled | MediaPrepared] = field(default_factory=SimpleQueue)
    stopped: bool = False
    generations: dict[int, Generation] = field(default_factory=dict)
    preparing: dict[int, list[Command]] = field(default_factory=dict)
    _replies: list[tuple[int, Reply]] = field(default_factory=list)
    _in_flight: InFlightStep | None = None
    masking: Masking | None = None
    progress: PromptProgress = field(default_factory=PromptProgress)

    def __post_init__(self) -> None:
        if self.compiler is not None:
            self.masking = Masking(self.compiler, self.limits.vocab_size, self.sampler.device)

    @property
    def waiting(self) -> int:
        return len(self.generations) + len(self.preparing) - len(self.scheduler.running) - len(self.scheduler.paused)

    def configure(self, generation: Generation) -> None:
        sequence = generation.sequence
        prompt = generation.counted
        output = sequence.tokens[sequence.prompt_length : sequence.known]
        self.sampler.set(sequence.row, sequence.number, generation.settings, prompt, output)

    def deliver(
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
            if generation.request.progress:
                # Report the rest of the prompt in front of its first token.
                for processed in (sequence.cached or 0, sequence.prompt_length):
                    if (progress := generation.progress(processed, now)) is not None:
                        self.reply(generation.number, progress)
            self.counters.time_to_first_token_seconds_sum += now - generation.arrived
            self.counters.time_to_first_token_seconds_count += 1
        ends = token in generation.ends
        matcher = generation.matcher
        # The mask allowed this token, so a matcher that rejects it is in a wrong state: its later masks would be wrong.
        if matcher is not None and not ends and not matcher.accept(token):
            self.fail(generation, matcher_failure(matcher))
            return
        complete = matcher is not None and not ends and matcher.finished
        if generation.steering is not None:
            generation.steering.push(token)
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
        self.finish(generation, "stop" if ends or complete or output.stopped is not None else "length")

    # endings

    def finish(self, generation: Generation, reason: FinishReason) -> None:
        now = self.clock()
        if generation.first is not None and generation.generated > 1:
            self.counters.time_per_output_token_seconds_sum += now - generation.first
            self.counters.time_per_output_token_seconds_count += generation.generated - 1
        self.reply(generation.number, generation.finished(reason, now))
        self.drop(generation)

    def fail(self, generation: Generation, error: EngineError) -> None:
        self.reply(generation.number, RequestFailed.of(error))
        self.drop(generation)

    def drop(self, generation: Generation) -> None:
        """Remove a generation and free everything it holds."""
        del self.generations[generation.number]
        self.scheduler.finish(generation.sequence)
        if self.loras is not None and generation.sequence.adapter:
            self.loras.leave(generation.sequence.adapter)

    def end_all(self, error: EngineError) -> list[tuple[int, Reply]]:
        """Fail every generation, for a core that stops. Returns the replies that were not taken yet."""
        for generation in list(self.generations.values()):
            self.fail(generation, error)
        for number in self.preparing:
            self.reply(number, RequestFailed.of(error))
        self.preparing.clear()
        replies, self._replies = self._replies, []
        return replies

    def reply(self, number: int, *replies: Reply) -> None:
        """Queue replies for a generation or a command; `step` returns them."""
        self._replies.extend((number, reply) for reply in replies)
