"""The interface of a dialect: how to request tokens from one kind of server, and how to read its frames."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engine_protocol.protocol import EngineError, GenerationRequest
from agent_server.engines.upstream.errors import error_frame
from agent_server.engines.upstream.grammar import UpstreamGrammar
from agent_server.engines.upstream.transport import Transport
from events.options import SamplingParams
from events.sampling import DEFAULTS


def same(value: Any) -> object:
    return value


class ParameterMapping(msgspec.Struct, frozen=True):
    """A sampling parameter in the upstream's terms. name: its field. value: converts our value; if it returns None, the
    field is omitted."""

    name: str
    value: Callable[[Any], object] = same


HERE = ParameterMapping("")
"""For a parameter that this server applies itself, so that it is not sent."""
IN_BODY = ParameterMapping("")
"""For a parameter that the dialect's `body` writes itself, for example because it takes several fields."""
Words = Mapping[str, ParameterMapping]
"""Attribute of SamplingParams → the upstream's word for it."""


def sampling_fields(words: Words, sampling: SamplingParams) -> dict[str, object]:
    """Return the upstream's fields for the sampling parameters that differ from their defaults."""
    fields: dict[str, object] = {}
    for name, word in words.items():
        value = getattr(sampling, name)
        if word.name and value is not None and value != DEFAULTS[name]:
            converted = word.value(value)
            if converted is not None:
                fields[word.name] = converted
    return fields


def folded(seed: int) -> int:
    """Fold a seed of 64 bits to 63: vLLM and SGLang take signed numbers, and -1 means no seed to vLLM."""
    return seed & (2**63 - 1)


def spelled_ids(bias: Mapping[int, float]) -> dict[str, float]:
    """Return the bias with ids as strings, because the keys of JSON objects are strings."""
    return {str(number): value for number, value in bias.items()}


DONE = b"[DONE]"


class UpstreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A server's description of itself; None and "" where it gives none.

    model: the name to send in requests. models: all names that it serves. grammar: the library whose grammars it
    accepts (see `upstream.grammar`), or None. lacks: attributes of SamplingParams that this server does not honour
    because of how it was started. pictures: it accepts pictures in addition to ids, and replaces the placeholder of
    each by as many tokens as it needs.
    """

    model: str
    models: tuple[str, ...] = ()
    version: str = ""
    context_length: int | None = None
    vocab_size: int | None = None
    grammar: str | None = None
    lacks: tuple[str, ...] = ()
    pictures: bool = False


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request before a dialect encodes it. sampling: the request's parameters with the model's defaults filled in.
    grammar: in the language of the upstream's library. ends: ids that end an answer."""

    request: GenerationRequest
    sampling: SamplingParams
    served: UpstreamInfo
    vocabulary: Vocabulary
    grammar: UpstreamGrammar | None = None
    ends: frozenset[int] = frozenset()


class Piece(msgspec.Struct, kw_only=True):
    """A decoded frame. text: for dialects without ids. texts: the text of each id, if the server's is better than our
    decoder's. logprobs, alternatives: one entry for each id, if they were requested. finish: the upstream's finish
    reason. stop: the stop string or id that matched, if the upstream reports it. cached: the number of prompt tokens
    from the upstream's cache. prompt: the number of prompt tokens by the upstream's count."""

    ids: Sequence[int] = ()
    text: str = ""
    texts: Sequence[str] | None = None
    logprobs: Sequence[float] | None = None
    alternatives: Sequence[Sequence[tuple[int, float]]] | None = None
    finish: str | None = None
    stop: str | int | None = None
    cached: int | None = None
    prompt: int | None = None


class Frame(msgspec.Struct):
    """Base of all dialects' frames. error: the failure that the server reports, or None."""

    error: object = None


F = TypeVar("F", bound=Frame)


class FrameDecoder(Generic[F]):
    """Reads one dialect's frames."""

    def __init__(self, kind: type[F]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, data: bytes) -> F | None:
        """Decode a frame; None for the mark at the end of the stream. Raises EngineError for a frame with an error, and
        msgspec's errors for data that is not a frame of this dialect."""
        if data == DONE:
            return None
        frame = self._decoder.decode(data)
        if frame.error is not None:
            raise error_frame(frame.error)
        return frame


class Reader(Protocol):
    """Reads the frames of one stream in order."""

    def read(self, data: bytes) -> Piece | None:
        """Decode a frame. Return None if it contains nothing of use. Raises EngineError for an error frame,
        msgspec.DecodeError for data that is not a frame of this dialect."""


class Dialect(Protocol):
    """One kind of server. name: the prefix of its URLs. path: where generations are requested. health: a path that
    answers 200 when the model is loaded. tokens: whether it sends ids; if not, its text is encoded here. words: the
    server's names for the sampling parameters that it honours; all others are refused."""

    name: str
    path: str
    health: str
    tokens: bool
    words: Words

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        """Request the server's description. model_name: the model to use if it serves several. Raises EngineError."""

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        """Return the server's own ids for a text in which special tokens are recognised; None if it has no such
        endpoint."""

    def check(self, outgoing: OutgoingRequest) -> None:
        """Raise EngineError("invalid_request") if a parameter is supported but its value is not."""

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        """Return the request's JSON."""

    def reader(self, outgoing: OutgoingRequest) -> Reader: ...


def chosen_model(names: Sequence[str], model_name: str, url: str) -> str:
    """Return the only model, or the one of several with our model's name. Raises EngineError, which lists the names."""
    if len(names) == 1:
        return names[0]
    if model_name in names:
        return model_name
    # The same model may be named with and without its organisation, or by a folder.
    same = [name for name in names if name.rsplit("/", 1)[-1] == model_name.rsplit("/", 1)[-1]]
    if len(same) == 1:
        return same[0]
    listed = ", ".join(names[:8]) or "none"
    raise EngineError("unavailable", f"The upstream {url} does not serve {model_name!r}. It serves {listed}.")


def field_of(answer: Any, name: str, kind: type) -> Any:
    """Return the value of a key of a JSON object; None if it is missing or has another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def ids_of(answer: object, name: str = "tokens") -> list[int] | None:
    """Return the list of token ids under a key of a JSON object; None if there is none."""
    ids = field_of(answer, name, list)
    return ids if ids is not None and all(isinstance(number, int) for number in ids) else None


_SECRET = secrets.token_bytes(32)


def cache_salt(tenant: str, own: str = "") -> str | None:
    """Return the tenant's salt: the same for the life of this process, and unpredictable. None without a tenant. own: a
    request's salt, which divides the tenant's.

    A salt that could be guessed would let a client measure whether another tenant has sent a prompt."""
    if not tenant and not own:
        return None
    named = f"{tenant}\0{own}" if own else tenant
    return hashlib.blake2b(named.encode(), key=_SECRET, digest_size=32).hexdigest()
