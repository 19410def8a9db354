"""Our side of an upstream's model: its vocabulary, what ends an answer, and how it likes to be sampled."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from agent_server.engine.detokenizer import TokenizerVocabulary, Vocabulary
from agent_server.engine.protocol import EngineError
from agent_server.model_files import load_model_files, model_folder
from events.options import SamplingParams
from events.sampling import FROM_MODEL


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """name: as clients call it. source: folder or hub name. ends: ids that end an answer. controls: spellings of
    the ids that are no text. defaults: sampling where a request says nothing. context_length: None if no file says."""

    name: str
    source: str
    vocabulary: Vocabulary
    ends: frozenset[int] = frozenset()
    controls: dict[int, str] = {}
    defaults: dict[str, float | int] = {}
    context_length: int | None = None

    def fill(self, sampling: SamplingParams) -> SamplingParams:
        """The sampling with the model's own values in place of those not given; neutral ones where it has none."""
        values = {name: self.defaults.get(name, neutral) for name, neutral in FROM_MODEL.items()}
        missing = {name: value for name, value in values.items() if getattr(sampling, name) is None}
        return msgspec.structs.replace(sampling, **missing)


def load_model(source: str, name: str) -> Model:
    """From a folder or a hub name; reads no weights. Raises EngineError with one sentence."""
    try:
        files = load_model_files(source)
    except FileNotFoundError as error:
        message = f"The tokenizer of {source} is needed beside an upstream engine: {error}"
        raise EngineError("unavailable", message) from error
    added = files.tokenizer.get_added_tokens_decoder()
    return Model(
        name=name,
        source=source,
        vocabulary=TokenizerVocabulary(files.tokenizer),
        ends=frozenset(files.stop_token_ids),
        controls={n: token.content for n, token in sorted(added.items()) if token.special or token.content.strip()},
        defaults=sampling_defaults(generation_config(source)),
        context_length=files.context_length,
    )


def generation_config(source: str) -> dict[str, Any]:
    """What generation_config.json says; empty where there is none."""
    try:
        found = json.loads((model_folder(source) / "generation_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def sampling_defaults(said: dict[str, Any]) -> dict[str, float | int]:
    """As the embedded engine reads it: greedy only if the model says so."""
    found = {name: said[name] for name in FROM_MODEL if isinstance(said.get(name), int | float)}
    return {**found, "temperature": 0.0} if said.get("do_sample") is False else found
