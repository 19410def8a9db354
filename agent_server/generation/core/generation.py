"""One generation inside the core: a request, its sequence, its text, its parameters and its times."""

from __future__ import annotations

import os
from collections.abc import Sequence as Items
from dataclasses import dataclass

import msgspec

from agent_server.engine_protocol.detokenizer import OutputText, Vocabulary
from agent_server.engine_protocol.protocol import Finished, FinishReason, GenerationRequest, Progress, Timings, Usage
from agent_server.generation.core.constraint import Matcher
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.sampling.penalties import Bonus, Steering, ThoughtBudget, bad_words
from agent_server.generation.sampling.sampler import RowSampling
from agent_server.generation.sampling.scores import PromptScores
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.speculation import PREDICTED_TOKENS, PromptLookup, Speculation
from events.options import SamplingParams

SEED_BYTES = 7
BANNED = -1e4
"""Added to the logit of a suppressed token; finite, so that the tokens can never all be ruled out."""
HONOURED = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "max_tokens", "min_tokens", "ignore_eos"}
    | {"logprobs", "prompt_logprobs", "bad_words", "allowed_token_ids", "thinking_token_budget"}
    | {"num_speculative_tokens"}
)
"""The sampling parameters that this core implements. All others are refused."""

WITH_DEFAULTS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "max_tokens", "num_speculative_tokens"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """context_length: tokens of prompt and answer together. max_queued: generations that may wait."""

    context_length: int
    vocab_size: int
    max_queued: int = 512


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default sampling parameters from the model's generation_config, and the tokens that end a generation. suppressed:
    tokens that are not generated unless a request's logit_bias names them. num_speculative_tokens: the operator's
    setting."""

    eos: frozenset[int] = frozenset()
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    suppressed: tuple[int, ...] = ()
    num_speculative_tokens: int | None = None

    def fill(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with the model's defaults for those that are None."""
        missing = {name: getattr(self, name) for name in WITH_DEFAULTS if getattr(params, name) is None}
        if self.suppressed:
            missing["logit_bias"] = {**dict.fromkeys(self.suppressed, BANNED), **params.logit_bias}
        return msgspec.structs.replace(params, **missing)


@dataclass(eq=False, slots=True)
class Generation:
    """arrived, started, first: times in seconds on the core's clock, None until it happens. reported_tokens: prompt
    tokens in the last progress report, -1 before the first. closed, examined: numbers of generated tokens when a
    string in which the model repeated itself was last closed, and when repetition was last looked for."""

    number: int
    request: GenerationRequest
    sequence: Sequence
    output: OutputText
    params: SamplingParams
    seed: int
    arrived: float
    eos: frozenset[int]
    ends: frozenset[int] = frozenset()
    matcher: Matcher | None = None
    started: float | None = None
    first: float | None = None
    stopped_on: str | int | None = None
    scores: PromptScores | None = None
    vocabulary: Vocabulary | None = None
    steering: Steering | None = None
    speculation: Speculation | None = None
    reported_tokens: int = -1
    closed: int = 0
    examined: int = 0

    @property
    def counted(self) -> list[int]:
        """The prompt's token ids that penalties count, without placeholders of media."""
        sequence = self.sequence
        if sequence.media is None:
            return sequence.tokens[: sequence.prompt_length]
        ids = self.request.prompt_token_ids
        return [token for token, key in zip(ids, sequence.tokens, strict=False) if key >= 0]

    def __post_init__(self) -> None:
        self.apply(self.params)

    def apply(self, params: SamplingParams) -> None:
        """Use these parameters, in which defaults are already filled in, from the next token on."""
        self.params = params
        stop_ids = frozenset(params.stop_token_ids)
        self.ends = stop_ids if params.ignore_eos else stop_ids | self.eos
        if params.seed is not None:
            self.seed = params.seed
        most = params.num_speculative_tokens
        if most is None:
            most = PREDICTED_TOKENS if self.request.prediction else 0
        if most != (0 if self.speculation is None else self.speculation.most):
            self.speculation = Speculation(most, PromptLookup(self.request.prediction)) if most else None
        thought, budget, vocabulary = self.request.thought, params.thinking_token_budget, self.vocabulary
        self.steering = None
        limit = None
        if vocabulary is not None and thought is not None and budget is not None:
            limit = ThoughtBudget(thought, budget, vocabulary, self.request.prompt_token_ids)
        if vocabulary is not None and (params.bad_words or limit is not None):
            self.steering = Steering(bad_words(params.bad_words, vocabulary), limit)
            for token in self.sequence.tokens[self.sequence.prompt_length : self.sequence.known]:
                self.steering.push(token)

    @property
    def generated(self) -> int:
        """The number of generated tokens, without pending ones."""
        return self.sequence.known - self.sequence.prompt_length

    @property
    def forced(self) -> Items[int]:
        """The next tokens, as far as the grammar allows no others; none if the generation needs the model's logits for
        them, for a log probability, a penalty or steering."""
        params = self.params
        needs_logits = params.logprobs is not None or params.presence_penalty or params.frequency_penalty
        steered = self.steering is not None or bool(params.allowed_token_ids)
        if self.matcher is None or needs_logits or steered or (params.repetition_penalty or 1.0) != 1.0:
            return ()
        tokens = self.matcher.forced
        return () if tokens and tokens[0] in self.ends else tokens

    @property
    def depends_on_last_token(self) -> bool:
        """Whether the sampling of the next token depends on the last one, through a mask or through steering."""
        return self.matcher is not None or (self.steering is not None and self.steering.near)

    @property
    def bonus(self) -> Bonus:
        """Token id → a number that is added to its logit, for the next token only."""
        return {} if self.steering is None else self.steering.bonus

    @property
    def settings(self) -> RowSampling:
        return RowSampling(self.params, self.seed, tuple(self.ends))

    def progress(self, processed: int, now: float) -> Progress | None:
        """Return the prompt's progress, or None if it was reported already: a preempted prompt is computed again."""
        started, total = now if self.started is None else self.started, self.sequence.prompt_length
        processed = min(processed, total)
        if processed <= self.reported_tokens:
            return None
        self.reported_tokens = processed
        cached = min(self.sequence.cached or 0, total)
        return Progress(total=total, cached=cached, processed=processed, seconds=now - started)

    def finished(self, reason: FinishReason, now: float) -> Finished:
        queued = (now if self.started is None else self.started) - self.arrived
        first = None if self.first is None else self.first - self.arrived
        return Finished(
            reason=reason,
            usage=Usage(
                prompt_tokens=self.sequence.prompt_length,
                completion_tokens=self.generated,
                cached_tokens=min(self.sequence.cached or 0, self.sequence.prompt_length),
            ),
            stop=self.stopped_on,
            timings=Timings(queued=queued, first_token=first, total=now - self.arrived),
            prompt_logprobs=None if self.scores is None else self.scores.tokens(),
            closed_string=self.closed > 0,
        )


def begin(
    number: int,
    request: GenerationRequest,
    vocabulary: Vocabulary,
    defaults: Defaults,
    longest: int,
    now: float,
    media: MediaInputs | None = None,
    adapter: str = "",
) -> Generation:
    """Create the generation of a request that was checked. longest: its maximum length in tokens. media: its pictures
    and sounds, whose tokens are in the prompt. adapter: the key of its LoRA adapter."""
    prompt = list(request.prompt_token_ids if media is None else media.layout.keys)
    params = defaults.fill(request.sampling)
    sequence = Sequence(
        number=number,
        tokens=prompt + list(request.generated),
        prompt_length=len(prompt),
        limit=limit_of(len(prompt), params, longest),
        tenant=request.tenant,
        salt=request.cache_salt,
        adapter=adapter,
        priority=request.priority,
        later=request.turn > 0,
        shareable=params.prompt_logprobs is None,
        scored=params.prompt_logprobs is not None,
        media=media,
        lease_key=None if request.cache_hold is None else (request.tenant, request.cache_hold.conversation),
        terms=terms_of(request, now),
        shift=0 if media is None else media.shift,
    )
    most = params.prompt_logprobs
    scores = None if most is None else PromptScores(request.prompt_token_ids, most, vocabulary)
    output = OutputText(vocabulary, request.prompt_token_ids, params.stop, params.min_tokens, request.generated)
    seed = int.from_bytes(os.urandom(SEED_BYTES), "little")
    return Generation(
        number, request, sequence, output, params, seed, now, defaults.eos, scores=scores, vocabulary=vocabulary
    )


def terms_of(request: GenerationRequest, now: float) -> LeaseTerms | None:
    hold = request.cache_hold
    if hold is None or not hold.prefill_only:
        return None
    return LeaseTerms((request.tenant, hold.conversation), now + hold.ttl, request.priority)


def limit_of(prompt_length: int, params: SamplingParams, longest: int) -> int:
    """Return the maximum length of the sequence in tokens."""
    return longest if params.max_tokens is None else min(longest, prompt_length + params.max_tokens)
