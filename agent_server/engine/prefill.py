"""Continuing the last assistant message, and the stage in which a model's output starts."""

from __future__ import annotations

from typing import Any, Literal

from events.formats.output_format import OutputFormat
from events.template.environment import Message
from events.template.writer import write

Stage = Literal["REASONING_STAGE", "CONTENT_STAGE", "TOOL_CALL_STAGE"]


def parts_of(message: Message, field: str | None) -> tuple[str, str]:
    """(reasoning, text) of an assistant message in a template's shape; field: the key that holds its reasoning."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return str(message.get(field) or "") if field else "", content
    thoughts = [part.get("thinking", "") for part in content if part.get("type") == "thinking"]
    flat = "".join(t if isinstance(t, str) else "".join(piece.get("text", "") for piece in t) for t in thoughts)
    return flat, "".join(part.get("text", "") for part in content if part.get("type") == "text")


def mark_end(message: Message, reasoning: str, content: str, mark: str) -> Message:
    """The message with a mark behind its last words: in its text, or in its reasoning if it has no text yet."""
    whole = content or reasoning
    if not whole:
        return {**message, "content": mark}
    marked: Message = _replaced(message, whole, whole + mark)
    return marked


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        kept = ("role", "type")
        return {key: item if key in kept else _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return new if value == old else value


def unfinished(output_format: OutputFormat, reasoning: str, content: str) -> str:
    """Reasoning and text as the model writes them, up to the last word: nothing is closed behind it."""
    text = write(output_format, reasoning=reasoning, content=content)
    last = content or reasoning
    return text[: text.rfind(last) + len(last)] if last else text


def stage_of(text: str, output_format: OutputFormat) -> Stage:
    """The stage behind a prompt, from the last of the format's markers in the assistant's message (everything behind
    the last header; the whole text where there is none)."""
    header = output_format.message_start.strip()
    written = text[text.rfind(header) :] if header and header in text else text
    described = output_format.reasoning
    if (tools := output_format.tools) and (opener := (tools.section_start or tools.call_start).strip()):
        closer = (tools.section_end or tools.call_end).strip()
        if written.rfind(opener) > written.rfind(closer or opener + "\0"):
            return (
                "TOOL_CALL_STAGE"
                if described is None or not _open(written, described.start, described.end)
                else ("REASONING_STAGE")
            )
    if described is None:
        return "CONTENT_STAGE"
    if _open(written, described.start, described.end):
        return "REASONING_STAGE"
    if described.initial == "reasoning" and _last(written, described.end) < 0:
        return "REASONING_STAGE"
    return "CONTENT_STAGE"


def _open(text: str, starts: tuple[str, ...], ends: tuple[str, ...]) -> bool:
    return _last(text, starts) > _last(text, ends)


def _last(text: str, marks: tuple[str, ...]) -> int:
    return max((text.rfind(mark.strip()) for mark in marks if mark.strip()), default=-1)
