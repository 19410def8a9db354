"""A prompt as the engine and the translator get it."""

from collections.abc import Mapping

import msgspec
from ag_ui.core import AudioPart, ImagePart

from events.formats.output_format import OutputFormat


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The prompt for the engine, and what the translator must know of it.

    text: the rendered prompt, for inspection. opened: the beginning of the answer that it already holds, from the
    assistant's header on. marker_ids: the format's markers that are one token of the vocabulary, with their ids.
    stop_token_ids: ids that end the answer. warnings: sentences about what was left out, changed or ignored.
    media: the parts of the pictures and sounds that it has places for, in their order. special_tokens: spellings of
    those that an answer does not show, by id.
    """

    token_ids: tuple[int, ...]
    text: str
    opened: str = ""
    output_format: OutputFormat = OutputFormat()
    marker_ids: dict[str, int] = {}
    stop_token_ids: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    media: tuple[ImagePart | AudioPart, ...] = ()
    special_tokens: Mapping[int, str] = {}
