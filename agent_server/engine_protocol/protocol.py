"""The contract between the server and whatever generates tokens.

An engine takes token ids and yields items. The last item is always `Finished`, and only a stream that ends with it
succeeded: a stream that ends without it, or that raises, failed. Every failure is an `EngineError`, which has a kind
and says whether a retry may help. Closing the stream (`aclose`) cancels the generation and frees its slot.

The tokenizer, the chat template and the parsing of the output are not part of an engine. They stay on the caller's
side, so an engine can be a GPU in another process, a replay of scripts or another project's inference server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol, Self, runtime_checkable

import msgspec

from events.grammar.nodes import Node, constant, either, pattern
from events.options import OptionError, SamplingParams

ErrorKind = Literal[
    "invalid_request",  # parameters the engine cannot honour
    "context_length_exceeded",  # prompt (plus max_tokens) does not fit the model
    "overloaded",  # the queue is full; retry later
    "unavailable",  # the engine is not loaded, is shutting down, or was lost before the first token
    "connection",  # the stream broke after the first token
    "timeout",  # nothing arrived within the time limit
    "out_of_memory",  # the request needs more memory than the device has
    "internal",  # a bug in this server or its engine
]
FinishReason = Literal["stop", "length", "cancelled"]


class EngineError(Exception):
    """A generation that failed. `retryable`: the same request may succeed later or elsewhere."""

    def __init__(self, kind: ErrorKind, message: str, *, retryable: bool = False, param: str | None = None) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.retryable = retryable
        self.param = param


class Failure(msgspec.Struct, frozen=True):
    """An EngineError as it is sent between processes."""

    kind: ErrorKind
    message: str
    retryable: bool = False
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> Self:
        return cls(error.kind, error.message, error.retryable, error.param)

    def error(self) -> EngineError:
        return EngineError(self.kind, self.message, retryable=self.retryable, param=self.param)


class Alternative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that could have been chosen, with its log probability (natural logarithm, before sampling filters)."""

    id: int
    text: str
    logprob: float


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One generated token. `text` is what it adds to the detokenised output: it may be empty while bytes of a
    character are held back, and then the next token carries the whole character. A special token's text is its
    literal spelling. A token that belongs to a matched stop string is reported with the text that precedes the
    stop string, possibly none."""

    id: int
    text: str
    logprob: float | None = None
    alternatives: tuple[Alternative, ...] | None = None


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    """Tokens in order, each delivered exactly once. `is_reasoning`: whether they are reasoning, where a worker says
    so."""

    tokens: tuple[Token, ...]
    is_reasoning: bool | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens. `cached_tokens`: how many of the prompt's were found in the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `queued`: spent in the queue. `first_token`: from arrival to the first token. `total`: from arrival to
    the end."""

    queued: float = 0.0
    first_token: float | None = None
    total: float = 0.0


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The mandatory last item. `stop` is the stop string or token id that matched, None for end-of-sequence.
    `resumed` counts how often the generation moved to another replica."""

    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    timings: Timings = Timings()
    prompt_logprobs: tuple[Token | None, ...] | None = None
    resumed: int = 0


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """Acknowledges, within the stream, that a control action takes effect before the next token. `position`: tokens
    generated so far."""

    action: Literal["paused", "resumed", "modified"]
    position: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far a prompt is, for a request with `progress`. Of its `total` tokens `processed` are computed, the `cached`
    ones that were found in the prefix cache among them; `seconds` since the first of them was begun. The first one that
    comes has nothing but what was cached, the last one comes in front of the first token and has the whole prompt, and
    each has more than the one before."""

    total: int
    cached: int
    processed: int
    seconds: float


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar on the output, in the backend-neutral form that `events.grammar` builds.

    kind "structural_tag": value is the structural tag as a dictionary (xgrammar's JSON form); "json_schema",
    "regex", "ebnf", "lark", "choice", "json_object": value is the schema, pattern, grammar or list.
    """

    kind: Literal["structural_tag", "json_schema", "json_object", "regex", "ebnf", "lark", "choice"]
    value: Any


class Picture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded picture. pixels: `height` rows of `width` times red, green and blue, a byte each. digest: of the size
    and the pixels, by which caches know the picture."""

    width: int
    height: int
    pixels: bytes
    digest: bytes


SOUND_RATE = 16_000
"""Samples a second, which most speech models are trained on."""


class Sound(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded sound. samples: little-endian int16 of one channel, `rate` of them a second. digest: of the rate and
    the samples, by which caches know the sound."""

    samples: bytes
    rate: int
    digest: bytes


class SpeechOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a transcription. language: as an ISO 639-1 code, "" to let the model find it. prompt: words that it may
    expect. temperature: 0 for the likeliest tokens."""

    language: str = ""
    prompt: str = ""
    temperature: float = 0.0


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """How the model writes reasoning, for an engine that keeps `thinking_token_budget`.

    opened: the prompt has opened it already. start, end: markers that open and close it. close: what the model writes
    from the end of its reasoning to the beginning of its answer.
    """

    opened: bool
    start: tuple[str, ...]
    end: tuple[str, ...]
    close: str


class CacheHold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Keep a conversation's computed tokens between its turns.

    conversation: its name, one of its tenant's. prefill_only: compute the prompt up to its last token, keep it, and
    generate nothing. ttl: seconds to keep it for; 0 releases what is kept.
    """

    conversation: str
    prefill_only: bool = False
    ttl: float = 0.0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence to generate. `tenant`: prefix caches are kept apart by it, and capacity is shared fairly between
    tenants. `priority`: more goes first. `cache_salt`: what is cached is shared by requests with the same one alone.
    `turn`: how many turns of the same piece of work came before; while generations wait, an engine may let later turns
    pass first ones.

    generated: the beginning of the answer, which another engine generated before it was lost. The engine does not yield
    it again. It counts as generated for everything else: limits, penalties, stop strings, the grammar, the seed's
    random numbers, positions and usage. Send it only to engines whose `EngineInfo.continues` is not "no".

    thought: for `thinking_token_budget`; None where the model writes no reasoning.

    adapter: the name of the LoRA adapter whose weights are added to the model's; "" for none.

    cache_hold: for engines whose `EngineInfo.cache_hold_seconds` is not 0. What is kept for the conversation is used.
    What is kept at the lowest priority is evicted first when others need the room.

    progress: tell how far the prompt is; for engines whose `EngineInfo.tells_progress` is True.

    pictures: one for each of the prompt's `EngineInfo.placeholders["image"]`, in their order. The engine puts as many
    tokens there as the picture takes, which count as the prompt's. sounds: the same, for "audio", with
    `EngineInfo.sound_rate` samples a second.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    generated: tuple[int, ...] = ()
    constraint: Constraint | None = None
    tenant: str = ""
    priority: int = 0
    turn: int = 0
    cache_salt: str = ""
    thought: Thought | None = None
    pictures: tuple[Picture, ...] = ()
    sounds: tuple[Sound, ...] = ()
    adapter: str = ""
    cache_hold: CacheHold | None = None
    progress: bool = False


EngineItem = Delta | Control | Progress | Finished


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`progress` is 0..1 while loading. `message` is one sentence for a person. "unloaded": the next request loads it.
    `silent`: the engine has left questions unanswered for a while. Work that it is given waits for it; a load balancer
    should send requests elsewhere."""

    state: Literal["unloaded", "starting", "loading", "ready", "degraded", "failed", "stopped"]
    progress: float | None = None
    message: str = ""
    silent: bool = False


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model and what the engine can do. The wires refuse a request for what is False here.

    sampling: the attributes of SamplingParams that the engine honours. A request that sets another one is refused with
    that parameter's name.
    continues: how the engine honours a request's `generated`. "exact": it generates the same rest as if it had
    generated the beginning too, with grammars and seeds. "plain": it treats those tokens as part of the prompt, so that
    grammars, seeds and the penalties that count the answer alone start from zero. "no": it ignores them.
    cache_hold_seconds: how long it keeps the cache of a waiting conversation; 0 where it ignores `cache_hold`.
    adapters: whether generations may name a LoRA adapter.
    tells_progress: whether it yields Progress where a request asks for it.
    placeholders: the kinds of media that the model takes beside text ("image", "audio"), each with the token that
    stands for one of them in a prompt. sound_rate: samples a second of its sounds. sound_seconds: of the longest sound
    that the model hears to its end, 0 for any.
    """

    model: str
    context_length: int
    vocab_size: int
    sampling: frozenset[str]
    supports_constraints: bool = False
    cache_hold_seconds: float = 0.0
    supports_pause: bool = True
    supports_modify: bool = True
    continues: Literal["exact", "plain", "no"] = "no"
    adapters: bool = False
    tells_progress: bool = False
    placeholders: dict[str, int] = {}
    sound_rate: int = SOUND_RATE
    sound_seconds: int = 0
    details: dict[str, Any] = {}


class Engine(Protocol):
    """Anything that turns token ids into tokens."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def status(self) -> EngineStatus: ...

    async def start(self) -> None:
        """Load the model and return when the engine is ready. Raises EngineError with one sentence for the operator."""

    async def close(self) -> None:
        """End every generation with EngineError("unavailable") and free the device. Safe to call twice."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """Yield Delta, Control and Progress, then exactly one Finished. Raises EngineError; `aclose()` cancels."""

    async def pause(self, request_id: str) -> bool:
        """False if no generation has this id. The stream acknowledges with Control."""

    async def resume(self, request_id: str) -> bool: ...

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        """Change sampling parameters (names of SamplingParams) from the very next token on."""

    def metrics(self) -> dict[str, float]:
        """Gauges and counters under vLLM's metric names without their prefix, for example num_requests_running."""


class OnlyCancelled:
    """The control of an engine whose generations can be cancelled and nothing else: no command reaches one."""

    async def pause(self, request_id: str) -> bool:
        return False

    async def resume(self, request_id: str) -> bool:
        return False

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        return False


@runtime_checkable
class TakesAdapters(Protocol):
    """An engine whose LoRA adapters can be changed while it runs."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter for generations that name it. Raises EngineError with one sentence."""

    async def remove_adapter(self, name: str) -> None:
        """Take no more generations for it; those that run end with it."""


def check_length(request: GenerationRequest, context_length: int) -> None:
    """Raises EngineError("context_length_exceeded") unless the prompt fits with `max_tokens`, and with at least one
    token."""
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        raise EngineError("invalid_request", "The prompt is empty.", param="prompt")
    if prompt >= context_length:
        raise EngineError(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens; this model's context holds {context_length}.",
            param="prompt",
        )
    wanted = request.sampling.max_tokens or 0
    if prompt + wanted > context_length:
        raise EngineError(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens and up to {wanted} are to be generated; "
            f"this model's context holds {context_length}.",
            param="max_tokens",
        )


def check_supported(request: GenerationRequest, info: EngineInfo) -> None:
    """Raises EngineError("invalid_request") for ids outside of the vocabulary and for parameters that the engine does
    not support. An unsupported parameter is never ignored."""
    sampling = request.sampling
    given = {"prompt": request.prompt_token_ids, "logit_bias": sampling.logit_bias}
    for param, ids in (given | {"allowed_token_ids": sampling.allowed_token_ids}).items():
        if ids and not 0 <= min(ids) <= max(ids) < info.vocab_size:
            bad = next(number for number in ids if not 0 <= number < info.vocab_size)
            message = f"The token id {bad} is outside of the vocabulary of {info.vocab_size}."
            raise EngineError("invalid_request", message, param=param)
    for param in sorted(sampling.asked() - info.sampling):
        raise EngineError("invalid_request", f"This engine does not support {param}.", param=param)
    if request.adapter and not info.adapters:
        raise EngineError("invalid_request", "This engine takes no LoRA adapters beside the weights.", param="model")
    if request.pictures:
        _check_media(request, info, "image", "pictures", len(request.pictures))
    if request.sounds:
        _check_media(request, info, "audio", "sounds", len(request.sounds))
    if request.constraint is not None and not info.supports_constraints:
        raise EngineError("invalid_request", "This engine does not support response_format.", param="response_format")


def _check_media(request: GenerationRequest, info: EngineInfo, kind: str, noun: str, given: int) -> None:
    placeholder = info.placeholders.get(kind)
    if placeholder is None:
        raise EngineError("invalid_request", f"This model takes no {noun}.", param="messages")
    found = request.prompt_token_ids.count(placeholder)
    if found != given:
        message = f"The prompt has {found} places for {given} {noun}: the chat template leaves some out."
        raise EngineError("invalid_request", message, param="messages")


def changed_sampling(sampling: SamplingParams, changes: dict[str, object]) -> SamplingParams:
    """`sampling` with some values replaced. Raises EngineError("invalid_request") for an unknown name or a bad
    value."""
    unknown = set(changes) - set(SamplingParams.__struct_fields__)
    if unknown:
        raise EngineError("invalid_request", f"Unknown sampling parameter {min(unknown)}.", param=min(unknown))
    try:
        merged = msgspec.convert({**msgspec.structs.asdict(sampling), **changes}, SamplingParams)
        merged.validate()
    except msgspec.ValidationError as error:
        raise EngineError("invalid_request", str(error)) from None
    except OptionError as error:
        raise EngineError("invalid_request", str(error), param=error.param) from None
    return merged


def node_of(constraint: Constraint) -> Node:
    """The constraint as a node of a structural tag. The `syntax` of a "grammar" node is "ebnf" or "lark"."""
    value = constraint.value
    match constraint.kind:
        case "structural_tag":
            return dict(value.get("format", value))
        case "json_schema":
            return {"type": "json_schema", "json_schema": value}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return pattern(value)
        case "choice":
            return either(*(constant(text) for text in value))
    return {"type": "grammar", "grammar": value, "syntax": constraint.kind}
