"""The interface between the server and the engines that generate tokens.

An engine takes token ids and yields items. The last item of a successful stream is always `Finished`; a stream that
ends without it, or that raises, has failed. Every failure is an `EngineError` with a kind and a flag that tells whether
a retry may help. Closing the stream (`aclose`) cancels the generation and frees its slot.

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
    """The serialisable form of an EngineError, for messages between processes."""

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
    """An alternative token with its log probability (natural logarithm, before penalties and filters)."""

    id: int
    text: str
    logprob: float


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One generated token. `text` is what it adds to the detokenised output. It is empty while a character is
    incomplete, and then a later token has the whole character. A special token's text is its literal spelling. A token
    that belongs to a matched stop string is reported with the text that precedes the stop string, possibly none."""

    id: int
    text: str
    logprob: float | None = None
    alternatives: tuple[Alternative, ...] | None = None


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    """Tokens in order, each delivered exactly once. is_reasoning: whether they are reasoning, if the worker reports
    it."""

    tokens: tuple[Token, ...]
    is_reasoning: bool | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens. cached_tokens: how many of the prompt's tokens were in the prefix cache."""

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
    `resumed` counts how often the generation moved to another replica. closed_string: whether the engine ended a JSON
    string because the model repeated itself in it."""

    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    timings: Timings = Timings()
    prompt_logprobs: tuple[Token | None, ...] | None = None
    resumed: int = 0
    closed_string: bool = False


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """Acknowledges, within the stream, that a control action takes effect before the next token. position: number of
    tokens generated so far."""

    action: Literal["paused", "resumed", "modified"]
    position: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """The progress of a prompt, for a request with `progress`. Of its `total` tokens `processed` are computed,
    including the `cached` ones from the prefix cache. seconds: since its computation started. The first report has only
    the cached tokens, the last one precedes the first token and has the whole prompt, and each has more than the one
    before."""

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
    """A decoded picture. pixels: `height` rows of `width` times red, green and blue, one byte each. digest: a hash of
    the size and the pixels, the key of the picture in caches."""

    width: int
    height: int
    pixels: bytes
    digest: bytes


SOUND_RATE = 16_000
"""Samples per second that most speech models are trained on."""


class Sound(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded sound. samples: little-endian int16 of one channel, `rate` per second. digest: a hash of the rate and
    the samples, the key of the sound in caches."""

    samples: bytes
    rate: int
    digest: bytes


class SpeechOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a transcription. language: an ISO 639-1 code, "" to let the model detect it. prompt: text that
    guides the model. temperature: 0 for greedy decoding."""

    language: str = ""
    prompt: str = ""
    temperature: float = 0.0


class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """How the model writes reasoning, for an engine that enforces `thinking_token_budget`.

    opened: the prompt already opens it. start, end: markers that open and close it. close: what the model writes
    between its reasoning and its answer.
    """

    opened: bool
    start: tuple[str, ...]
    end: tuple[str, ...]
    close: str


class CacheHold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request to keep a conversation's computed tokens between its turns.

    conversation: its name, unique within its tenant. prefill_only: compute the prompt up to its last token, keep it,
    and generate nothing. ttl: seconds to keep it for; 0 releases it.
    """

    conversation: str
    prefill_only: bool = False
    ttl: float = 0.0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence to generate. tenant: prefix caches are separated by it, and capacity is shared fairly between
    tenants. priority: higher goes first. cache_salt: cached prefixes are shared only between requests with the same
    one. turn: how many turns of the same piece of work came before; an engine may let later turns overtake first ones
    in its queue.

    generated: the beginning of the answer, which another engine generated before it was lost. The engine does not yield
    it again. It counts as generated for everything else: limits, penalties, stop strings, the grammar, the seed's
    random numbers, positions and usage. Send it only to engines whose `EngineInfo.continues` is not "no".

    thought: for `thinking_token_budget`; None if the model writes no reasoning.

    adapter: the name of the LoRA adapter whose weights are added to the model's; "" for none.

    cache_hold: for engines whose `EngineInfo.cache_hold_seconds` is not 0. The engine uses what it keeps for the
    conversation. Under memory pressure, what is kept at the lowest priority is evicted first.

    progress: report the prompt's progress; for engines whose `EngineInfo.tells_progress` is True.

    prediction: what the answer is expected to contain. An engine that speculates drafts from it; the answer is the same
    without it.

    pictures: one for each `EngineInfo.placeholders["image"]` of the prompt, in order. The engine replaces the
    placeholder by as many tokens as the picture needs, which count as prompt tokens. sounds: the same for "audio", with
    `EngineInfo.sound_rate` samples per second.
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
    prediction: tuple[int, ...] = ()


EngineItem = Delta | Control | Progress | Finished


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine. "unloaded": the next request loads it. progress: 0 to 1 while loading. message: one
    sentence for a person. silent: the engine has not answered pings for a while. Requests to it wait, so a load
    balancer should send them elsewhere."""

    state: Literal["unloaded", "starting", "loading", "ready", "degraded", "failed", "stopped"]
    progress: float | None = None
    message: str = ""
    silent: bool = False


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model and the capabilities of its engine. The wires refuse requests for what is False here.

    sampling: the attributes of SamplingParams that the engine supports. A request that sets another one is refused with
    that parameter's name.
    continues: how the engine treats a request's `generated`. "exact": it generates the same continuation as if it had
    generated the beginning too, with grammars and seeds. "plain": it treats those tokens as part of the prompt, so
    grammars, seeds and penalties on the answer are restarted. "no": it ignores them.
    cache_hold_seconds: how long it keeps the cache of a waiting conversation; 0 if it ignores `cache_hold`.
    adapters: whether generations may name a LoRA adapter.
    tells_progress: whether it yields Progress for a request with `progress`.
    placeholders: the kinds of media that the model accepts ("image", "audio"), each with its placeholder token in a
    prompt. sound_rate: samples per second of its sounds. sound_seconds: length of the longest sound that the model
    processes whole, 0 if there is no limit.
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
        """End all generations with EngineError("unavailable") and free the device. Safe to call twice."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """Yield Delta, Control and Progress, then exactly one Finished. Raises EngineError; `aclose()` cancels."""

    async def pause(self, request_id: str) -> bool:
        """Pause a generation; return False if there is none with this id. The stream acknowledges with Control."""

    async def resume(self, request_id: str) -> bool: ...

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        """Change sampling parameters (names of SamplingParams) from the very next token on."""

    def metrics(self) -> dict[str, float]:
        """Return gauges and counters under vLLM's metric names without their prefix, such as num_requests_running."""


class CancelOnly:
    """Mixin for engines whose generations can be cancelled but not paused, resumed or modified."""

    async def pause(self, request_id: str) -> bool:
        return False

    async def resume(self, request_id: str) -> bool:
        return False

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        return False


@runtime_checkable
class LoraEngine(Protocol):
    """An engine whose LoRA adapters can be changed while it runs."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter for generations that name it. Raises EngineError with one sentence."""

    async def remove_adapter(self, name: str) -> None:
        """Accept no more generations for an adapter; running ones finish with it."""


def too_long(tokens: int, limit: int, whose: str = "the model's context") -> str:
    """Return the message for a prompt that does not fit, in the words by which clients know that they must shorten the
    conversation."""
    return f"The prompt is too long: {tokens} tokens > {limit} maximum, {whose}."


def check_length(request: GenerationRequest, context_length: int) -> None:
    """Check that the prompt fits into the context with `max_tokens`, and with at least one token. Raises
    EngineError("context_length_exceeded")."""
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        raise EngineError("invalid_request", "The prompt is empty.", param="prompt")
    if prompt >= context_length:
        raise EngineError("context_length_exceeded", too_long(prompt, context_length), param="prompt")
    max_tokens = request.sampling.max_tokens or 0
    if prompt + max_tokens > context_length:
        raise EngineError(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens and max_tokens is {max_tokens}, "
            f"but this model's context holds {context_length}.",
            param="max_tokens",
        )


def check_supported(request: GenerationRequest, info: EngineInfo) -> None:
    """Check that all ids are in the vocabulary and that the engine supports all parameters; an unsupported parameter is
    never ignored. Raises EngineError("invalid_request")."""
    sampling = request.sampling
    ids_by_param = {"prompt": request.prompt_token_ids, "logit_bias": sampling.logit_bias}
    for param, ids in (ids_by_param | {"allowed_token_ids": sampling.allowed_token_ids}).items():
        if ids and not 0 <= min(ids) <= max(ids) < info.vocab_size:
            bad = next(number for number in ids if not 0 <= number < info.vocab_size)
            message = f"Token id {bad} is outside of the vocabulary of {info.vocab_size} tokens."
            raise EngineError("invalid_request", message, param=param)
    for param in sorted(sampling.names_in_effect() - info.sampling):
        raise EngineError("invalid_request", f"This engine does not support {param}.", param=param)
    if request.adapter and not info.adapters:
        message = "This engine does not support LoRA adapters per request."
        raise EngineError("invalid_request", message, param="model")
    if request.pictures:
        _check_media(request, info, "image", "pictures", len(request.pictures))
    if request.sounds:
        _check_media(request, info, "audio", "sounds", len(request.sounds))
    if request.constraint is not None and not info.supports_constraints:
        raise EngineError("invalid_request", "This engine does not support response_format.", param="response_format")


def _check_media(request: GenerationRequest, info: EngineInfo, kind: str, noun: str, count: int) -> None:
    placeholder = info.placeholders.get(kind)
    if placeholder is None:
        raise EngineError("invalid_request", f"This model does not accept {noun}.", param="messages")
    placeholders = request.prompt_token_ids.count(placeholder)
    if placeholders != count:
        message = f"The prompt has {placeholders} placeholders for {count} {noun}: the chat template omits some."
        raise EngineError("invalid_request", message, param="messages")


def changed_sampling(sampling: SamplingParams, changes: dict[str, object]) -> SamplingParams:
    """Return `sampling` with some values replaced. Raises EngineError("invalid_request") for an unknown name or an
    invalid value."""
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
    """Convert the constraint to a node of a structural tag. The `syntax` of a "grammar" node is "ebnf" or "lark"."""
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
