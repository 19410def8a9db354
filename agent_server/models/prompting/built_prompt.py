"""The result of building a prompt, for the engine and the translator."""

from collections.abc import Mapping

import msgspec
from ag_ui.core import AudioPart, ImagePart

from events.formats.output_format import OutputFormat


class Prompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The prompt for the engine, and what the translator needs to know about it.

    text: the rendered prompt, for inspection. opened: the part of the answer that the prompt already contains, from the
    assistant's header on. marker_ids: ids of the format's markers that are single tokens. stop_token_ids: ids that end
    the answer. warnings: sentences about what was left out, changed or ignored. media: the pictures and sounds that it
    has placeholders for, in order. special_tokens: id → spelling of the tokens that an answer does not show.
    prediction: tokens that the answer is expected to contain.
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
    prediction: tuple[int, ...] = ()
