"""What a dialect is: how one kind of server is asked for tokens, and how its frames are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from agent_server.engine.detokenizer import Vocabulary
from agent_server.engine.protocol import EngineError, GenerationRequest
from agent_server.engines.upstream.dialects.words import Words
from agent_server.engines.upstream.grammar import Grammar
from agent_server.engines.upstream.transport import Transport
from events.options import SamplingParams


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. model: the name that requests carry. models: all the names it has. None and ""
    are what it does not say. grammar: the language in which it takes grammars (see `upstream.grammar`), None for none.
    lacks: attributes of SamplingParams that this server, as it was started, does not honour.
    """

    model: str
    models: tuple[str, ...] = ()
    version: str = ""
    context_length: int | None = None
    vocab_size: int | None = None
    grammar: str | None = None
    lacks: tuple[str, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One generation as a dialect sees it. sampling: the request's with the model's defaults filled in. grammar: in
    the upstream's own language. ends: ids that end an answer."""

    request: GenerationRequest
    sampling: SamplingParams
    served: Served
    vocabulary: Vocabulary
    grammar: Grammar | None = None
    ends: frozenset[int] = frozenset()


class Piece(msgspec.Struct, kw_only=True):
    """One frame, read. text: for dialects that have no ids. texts: what the ids read
    as, where the server knows better than our decoder. logprobs and alternatives are as long as ids, where they
    were asked for. finish: the upstream's word for why it ended; then stop is what matched, as far as it says."""

    ids: Sequence[int] = ()
    text: str = ""
    texts: Sequence[str] | None = None
    logprobs: Sequence[float] | None = None
    alternatives: Sequence[Sequence[tuple[int, float]]] | None = None
    finish: str | None = None
    stop: str | int | None = None
    cached: int | None = None


class Reader(Protocol):
    """Reads the frames of one stream in order."""

    def read(self, data: bytes) -> Piece | None:
        """None for a frame that says nothing. Raises EngineError for an error frame, msgspec.DecodeError for what is
        no frame of this dialect."""


class Dialect(Protocol):
    """One kind of server. name: as in front of a URL. path: where generations are asked for. health: answers 200
    when the model is loaded. tokens: whether ids come back; without them the text is encoded here. words: for the
    sampling parameters that are honoured; all others are refused."""

    name: str
    path: str
    health: str
    tokens: bool
    words: Words

    async def describe(self, transport: Transport, wanted: str) -> Served:
        """Ask the server what it serves; `wanted` chooses where it serves several models. Raises EngineError."""

    async def tokenize(self, transport: Transport, served: Served, text: str) -> list[int] | None:
        """The server's own ids for a text in which special tokens are recognised; None where it does not tell."""

    def check(self, asked: Asked) -> None:
        """EngineError("invalid_request") for values that cannot be honoured, of parameters that can."""

    def body(self, asked: Asked) -> dict[str, Any]:
        """The request's JSON."""

    def reader(self, asked: Asked) -> Reader: ...


def chosen_model(names: Sequence[str], wanted: str, url: str) -> str:
    """The one model, or the one of several that is called like ours. Raises EngineError with the names there are."""
    if len(names) == 1:
        return names[0]
    if wanted in names:
        return wanted
    found = [name for name in names if name.rsplit("/", 1)[-1] == wanted.rsplit("/", 1)[-1]]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(names[:8]) or "none"
    raise EngineError("unavailable", f"The upstream {url} serves no model {wanted!r}; it has {shown}.")


def known(answer: Any, name: str, kind: type) -> Any:
    """A value of a JSON object, None if it is not there or of another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def ids_of(answer: Any, name: str = "tokens") -> list[int] | None:
    """A list of ids in a JSON object."""
    found = known(answer, name, list)
    return found if found is not None and all(isinstance(number, int) for number in found) else None
