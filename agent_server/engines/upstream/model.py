"""What this side knows of an upstream's model: its vocabulary, the ids that end an answer, its sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary, Vocabulary
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
        """The sampling with the model's defaults for parameters that are not given, or neutral values if it has
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
    """The token for a picture that a checkpoint's files name. Gemma's templates write the one that begins a picture,
    others the one in whose places its features stand."""
    config = _json_file(source, "config.json")
    begins = _json_file(source, "tokenizer_config.json").get("boi_token")
    if isinstance(begins, str) and str(config.get("model_type")).startswith("gemma"):
        return id_of(begins)
    numbers = (config.get(name) for name in ("image_token_id", "image_token_index"))
    return next((number for number in numbers if type(number) is int), None)


def generation_config(source: str) -> dict[str, object]:
    """The content of generation_config.json; empty if there is none."""
    return _json_file(source, "generation_config.json")


def _json_file(source: str, name: str) -> dict[str, Any]:
    """The object in a file of the model; empty if there is none, or the hub does not answer."""
    if is_gguf(source):
        return {}
    try:
        found = json.loads((model_folder(source) / name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def sampling_defaults(config: dict[str, Any]) -> dict[str, float | int]:
    """The sampling defaults of a generation config, read as the embedded engine does: greedy only if `do_sample` is
    false."""
    defaults = {name: config[name] for name in FROM_MODEL if isinstance(config.get(name), int | float)}
    return {**defaults, "temperature": 0.0} if config.get("do_sample") is False else defaults
