"""The contract between the server and whatever generates tokens.

Token ids in; items out; the last item is always `Finished`, and it is the only success. A stream that ends without
it, or that raises, failed. Every failure is one `EngineError` with a kind and whether a retry may help. Closing the
stream (`aclose`) cancels the generation and frees its slot.

Tokenizer, chat template and output parsing are not the engine's: they stay on this side of the protocol, so an
engine can be a GPU in another process, a scripted replay or somebody else's server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

import msgspec

from events.options import SamplingParams

ErrorKind = Literal[
    "invalid_request",  # parameters the engine cannot honour
    "context_length_exceeded",  # prompt (plus max_tokens) does not fit the model
    "overloaded",  # the queue is full; retry later
    "unavailable",  # not loaded, shutting down or lost before the first token
    "connection",  # the stream broke in the middle
    "timeout",  # nothing arrived for too long
    "out_of_memory",  # this request does not fit the device
    "internal",  # a fault of ours
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
    """Tokens in order, each delivered exactly once. `is_reasoning` is a worker's own statement, else None."""

    tokens: tuple[Token, ...]
    is_reasoning: bool | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts in tokens. `cached_tokens` of the prompt were taken from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: in the queue, until the first token (from arrival), and in all."""

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
    """In-band acknowledgement that a control action took effect before the next token."""

    action: Literal["paused", "resumed", "modified"]
    position: int


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar on the output, in the backend-neutral form that `events.grammar` builds.

    kind "structural_tag": value is the structural tag as a dictionary (xgrammar's JSON form); "json_schema",
    "regex", "ebnf", "lark", "choice", "json_object": value is the schema, pattern, grammar or list.
    """

    kind: Literal["structural_tag", "json_schema", "json_object", "regex", "ebnf", "lark", "choice"]
    value: Any


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. `tenant` separates prefix caches and shares capacity fairly.

    generated: the beginning of the answer, which another engine produced before it was lost. It is not yielded again,
    and counts as generated for everything else: limits, penalties, stop strings, the grammar, the seed's random
    numbers, positions and usage. Only for engines whose info says how they `continues`.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    generated: tuple[int, ...] = ()
    constraint: Constraint | None = None
    tenant: str = ""
    priority: int = 0


EngineItem = Delta | Control | Finished


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`progress` is 0..1 while loading. `message` is one sentence for a person."""

    state: Literal["starting", "loading", "ready", "degraded", "failed", "stopped"]
    progress: float | None = None
    message: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded and what it can do; wires refuse what is False here instead of ignoring it.

    sampling: the attributes of SamplingParams that it honours; whatever else a request asks for is refused by name.
    continues: how a request's `generated` is honoured. "exact": the rest is what this engine would have generated had
    it begun itself, grammars and seeds included. "plain": as if those tokens were the prompt's, so that grammars,
    seeds and penalties on the answer alone would start anew. "no": it is not looked at.
    """

    model: str
    context_length: int
    vocab_size: int
    sampling: frozenset[str]
    supports_constraints: bool = False
    supports_pause: bool = True
    supports_modify: bool = True
    continues: Literal["exact", "plain", "no"] = "no"
    details: dict[str, Any] = {}


class Engine(Protocol):
    """Anything that turns token ids into tokens."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def status(self) -> EngineStatus: ...

    async def start(self) -> None:
        """Load and become ready; raise EngineError with one clear sentence when that fails."""

    async def close(self) -> None:
        """End every generation with EngineError("unavailable") and free the device. Safe to call twice."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """Yield Delta and Control items, then exactly one Finished. Raises EngineError; `aclose()` cancels."""

    async def pause(self, request_id: str) -> bool:
        """False if no such generation runs. The stream acknowledges with Control."""

    async def resume(self, request_id: str) -> bool: ...

    async def modify(self, request_id: str, changes: dict[str, Any]) -> bool:
        """Change sampling parameters (names of SamplingParams) from the very next token on."""

    def metrics(self) -> dict[str, float]:
        """Gauges and counters by vLLM's metric names without their prefix, e.g. num_requests_running."""
