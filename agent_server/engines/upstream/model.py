"""The local description of an upstream's model: its vocabulary, end-of-answer ids and sampling defaults."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agent_server.engine_protocol.detokenizer import Detokenizer, TokenizerVocabulary, Vocabulary
from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import control_tokens, is_gguf, load_model_files, model_folder
from events.options import SamplingParams
from events.sampling import FROM_MODEL


class UpstreamModel(msgspec.Struct, frozen=True, kw_only=True):
    """name: the name that clients use. source: folder or hub name. ends: ids that end an answer. controls: spellings of
    the control tokens by id. defaults: sampling parameters for requests that do not give them. context_length: None if
    no file of the model gives it. image_token: what its chat template writes for a picture;
    None for a model of text."""

    name: str
    source: str
    vocabulary: Vocabulary
    ends: frozenset[int] = frozenset()
    controls: dict[int, str] = {}
    defaults: dict[str, float | int] = {}
    context_length: int | None = None
    image_token: int | None = None

    def fill(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling with the model's defaults for parameters that are not given, or neutral values if it has
        none."""
        values = {name: self.defaults.get(name, neutral) for name, neutral in FROM_MODEL.items()}
        missing = {name: value for name, value in values.items() if getattr(sampling, name) is None}
        return msgspec.structs.replace(sampling, **missing)


def load_model(source: str, name: str) -> UpstreamModel:
    """Read a model's files from a folder or a hub name, without its weights. Raises EngineError with one sentence."""
    try:
        files = load_model_files(source)
    except FileNotFoundError as error:
        message = f"The tokenizer of {source} is needed beside an upstream engine: {error}"
        raise EngineError("unavailable", message) from error
    controls = control_tokens(files.tokenizer, files.templates.values())
    return UpstreamModel(
        name=name,
        source=source,
        vocabulary=TokenizerVocabulary(files.tokenizer),
        ends=frozenset(files.stop_token_ids),
        controls={number: token.content for number, token in controls.items()},
        defaults=sampling_defaults(generation_config(source)),
        context_length=files.context_length,
        image_token=image_token(source, files.tokenizer.token_to_id),
    )


def image_token(source: str, id_of: Callable[[str], int | None]) -> int | None:
    """Return the token for a picture that a checkpoint's files name. Gemma's templates write the one that begins a
    picture, others the one in whose places its features stand."""
    config = _json_file(source, "config.json")
    begins = _json_file(source, "tokenizer_config.json").get("boi_token")
    if isinstance(begins, str) and str(config.get("model_type")).startswith("gemma"):
        return id_of(begins)
    numbers = (config.get(name) for name in ("image_token_id", "image_token_index"))
    return next((number for number in numbers if type(number) is int), None)


def generation_config(source: str) -> dict[str, object]:
    """Return the content of generation_config.json; empty if there is none."""
    return _json_file(source, "generation_config.json")


def _json_file(source: str, name: str) -> dict[str, Any]:
    """Return the object in a file of the model; empty if there is none, or the hub does not answer."""
    if is_gguf(source):
        return {}
    try:
        value = json.loads((model_folder(source) / name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sampling_defaults(config: dict[str, Any]) -> dict[str, float | int]:
    """Return the sampling defaults of a generation config, read as the embedded engine does: greedy only if `do_sample`
    is false."""
    defaults = {name: config[name] for name in FROM_MODEL if isinstance(config.get(name), int | float)}
    return {**defaults, "temperature": 0.0} if config.get("do_sample") is False else defaults


class UpstreamText:
    """A vocabulary that gives tokens the text that the upstream wrote, instead of decoding their ids.

    `take` encodes a piece of text. A spelled control token becomes that token's id. Of the text between two control
    tokens all ids but the last have no text, and the last has all of it.
    """

    def __init__(self, vocabulary: Vocabulary, controls: Mapping[int, str]) -> None:
        self._vocabulary = vocabulary
        self.size = vocabulary.size
        self._ids = {text: number for number, text in controls.items() if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        self._texts: deque[str] = deque()

    def parts(self, text: str, most: int) -> Iterator[str]:
        """Split a long piece of text into parts of at most so many characters, or of a spelled control token."""
        at = 0
        for match in self._splitter.finditer(text) if self._splitter else ():
            yield from _slices(text, at, match.start(), most)
            yield match.group()
            at = match.end()
        yield from _slices(text, at, len(text), most)

    def take(self, text: str) -> list[int]:
        """Return the ids of the next piece of text. Their texts are kept for the detokenizer."""
        ids: list[int] = []
        for part in filter(None, self._splitter.split(text) if self._splitter else [text]):
            part_ids = [self._ids[part]] if part in self._ids else self._vocabulary.encode(part) or [0]
            ids += part_ids
            self._texts += [""] * (len(part_ids) - 1) + [part]
        return ids

    def expect(self, texts: Sequence[str]) -> None:
        """Use these texts for the next ids."""
        self._texts += texts

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)

    def spell(self, token_id: int) -> str:
        return self._vocabulary.spell(token_id)

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        return _GivenTexts(self._texts, self._vocabulary.detokenizer(context))


def _slices(text: str, start: int, end: int, most: int) -> Iterator[str]:
    for at in range(start, end, most):
        yield text[at : min(end, at + most)]


class _GivenTexts:
    """Returns the text that is kept for an id, and decodes the id if there is none."""

    def __init__(self, texts: deque[str], decoder: Detokenizer) -> None:
        self._texts = texts
        self._decoder = decoder

    def push(self, token_id: int) -> str:
        return self._texts.popleft() if self._texts else self._decoder.push(token_id)

    def flush(self) -> str:
        return self._decoder.flush()
