"""Prefills: continuing the last assistant message, and the stage in which the model's output starts behind a prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from events.formats.layout import call_closer, call_opener
from events.formats.output_format import OutputFormat
from events.template.environment import Message
from events.template.writer import write

_TO_COME = "\0"
"""Stands for content that the model is still to write."""
OutputStage = Literal["REASONING_STAGE", "CONTENT_STAGE", "TOOL_CALL_STAGE"]


def mark_end(message: Message, last_words: str, mark: str, restore: Callable[[str], str]) -> Message:
    """The message with a mark behind every string that equals `last_words`. restore: replaces the stand-ins in a string
    of the message by the client's text."""
    if not last_words:
        return {**message, "content": mark}
    marked: Message = _marked(message, last_words, mark, restore)
    return marked


def _marked(value: object, last_words: str, mark: str, restore: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        kept = ("role", "type")
        return {k: item if k in kept else _marked(item, last_words, mark, restore) for k, item in value.items()}
    if isinstance(value, list):
        return [_marked(item, last_words, mark, restore) for item in value]
    return value + mark if isinstance(value, str) and restore(value) == last_words else value


def unfinished(output_format: OutputFormat, reasoning: str, content: str, *, closed: bool = False) -> str:
    """Reasoning and content as the model writes them, without what closes the last part, so that the model continues
    it. closed: close the reasoning even if there is no content yet."""
    if closed and reasoning and not content:
        return write(output_format, reasoning=reasoning, content=_TO_COME).partition(_TO_COME)[0]
    text = write(output_format, reasoning=reasoning, content=content)
    last = content or reasoning
    return text[: text.rfind(last) + len(last)] if last else text


def written_stage(output_format: OutputFormat, text: str) -> OutputStage:
    """The stage in which the output behind a prompt starts, by the last marker of the format in the assistant's message
    (everything behind the last message header, or the whole text if there is none)."""
    header = output_format.message_start.strip()
    written = text[text.rfind(header) :] if header and header in text else text
    described = output_format.reasoning
    if (tools := output_format.tools) and (opener := call_opener(tools)):
        closer = call_closer(tools)
        if written.rfind(opener) > written.rfind(closer or opener + "\0"):
            return (
                "TOOL_CALL_STAGE"
                if described is None or not open_marker(written, described.start, described.end)
                else ("REASONING_STAGE")
            )
    if described is None:
        return "CONTENT_STAGE"
    if open_marker(written, described.start, described.end):
        return "REASONING_STAGE"
    if described.initial == "reasoning" and _last(written, described.end) < 0:
        return "REASONING_STAGE"
    return "CONTENT_STAGE"


def open_marker(text: str, starts: tuple[str, ...], ends: tuple[str, ...]) -> bool:
    """Whether the last marker in the text is one that opens."""
    return _last(text, starts) > _last(text, ends)


def _last(text: str, marks: tuple[str, ...]) -> int:
    return max((text.rfind(mark.strip()) for mark in marks if mark.strip()), default=-1)
