"""Prefills: continuing the last assistant message, and the stage in which the output after a prompt starts."""

from __future__ import annotations

from typing import Any, Literal

from agent_server.models.prompting.control_tokens import ControlTokenEscaper
from events.formats.layout import call_closer, call_opener
from events.formats.output_format import OutputFormat
from events.template.environment import Message
from events.template.writer import write, writes_reasoning

_TO_COME = "\0"
"""Placeholder for content that the model has not written yet."""
OutputStage = Literal["REASONING_STAGE", "CONTENT_STAGE", "TOOL_CALL_STAGE"]


class Prefill:
    """The assistant's last message without its end, so that the model continues it.

    reasoning, content: the client's text. escaper: the request's, whose stand-ins the rendered texts contain. closed:
    close the reasoning even if there is no content yet.
    """

    def __init__(
        self, output_format: OutputFormat, reasoning: str, content: str, escaper: ControlTokenEscaper, *, closed: bool
    ) -> None:
        self._format = output_format
        self._reasoning = reasoning if writes_reasoning(output_format) else ""
        self._content = content
        self._mark = escaper.stand_in("")
        self._covered = (escaper.cover(self._reasoning), escaper.cover(content))
        self._restore = escaper.restore
        self._closed = closed

    def marked(self, message: Message) -> Message:
        """Return the message for the template, with a mark after each string that equals the end of the message."""
        last_words = self._content or self._reasoning
        if not last_words:
            return {**message, "content": self._mark}
        marked: Message = self._with_mark(message, last_words)
        return marked

    def _with_mark(self, value: object, last_words: str) -> Any:
        if isinstance(value, dict):
            structural_keys = ("role", "type")
            return {
                key: item if key in structural_keys else self._with_mark(item, last_words)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._with_mark(item, last_words) for item in value]
        return value + self._mark if isinstance(value, str) and self._restore(value) == last_words else value

    def cut(self, text: str, before: str, previous: Message | None) -> tuple[str, str] | None:
        """Cut a rendered text at the mark of its last message, and return (prompt, opened).

        before: the rendered conversation up to that message. previous: the last message of that conversation. Returns
        None if the template does not render the whole message (QwQ drops reasoning), or renders earlier messages
        differently because of it (gpt-oss drops reasoning), so that earlier calls would be parsed again."""
        if self._mark not in text or (self._closed and self._reasoning):
            return None
        prompt = text[: text.rfind(self._mark)]
        if _holds_message(before[common_size(before, prompt) :], self._format.message_start, previous):
            return None
        opened = prompt[beginning(prompt, before, self._format.message_start) :]
        whole = self._restore(prompt).endswith(self._content or self._reasoning)
        if not whole or self._reasoning not in self._restore(opened):
            return None
        thinks = self._content and written_stage(self._format, opened) == "REASONING_STAGE"
        return None if thinks else (prompt, opened)

    def written(self, prompt: str, opened: str) -> tuple[str, str]:
        """Append the message to a generation prompt, in the model's format, and return (prompt, opened). opened: the
        part of the answer in the generation prompt; if it opens a block of reasoning, the message's own replaces it."""
        header, prefix = self._format.message_start, opened
        if header and opened.startswith(header):
            replaces_opened = self._reasoning or written_stage(self._format, opened) != "CONTENT_STAGE"
            prefix = header if replaces_opened else opened
        answer = prefix + unfinished(self._format, *self._covered, closed=self._closed)
        return prompt[: len(prompt) - len(opened)] + answer, answer


def _holds_message(rest: str, header: str, previous: Message | None) -> bool:
    """Return whether a text contains more of a conversation than its end: an assistant's header, or the content of the
    last message."""
    if header and header in rest:
        return True
    content = (previous or {}).get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
    return any(part.strip() and part.strip() in rest for part in parts)


def beginning(prompt: str, before: str, header: str) -> int:
    """Return the position in the prompt at which the unfinished message begins. That is the end of the conversation
    before it, or the message's header if the rendering of that conversation already contains a part of it, as with
    templates whose generation prompt cannot be omitted, or that write `<|endoftext|>` instead of `<|assistant|>`."""
    common = common_size(before, prompt)
    place = prompt.rfind(header, 0, common + len(header)) if header else -1
    return place if 0 <= place <= common <= place + len(header) else common


def common_size(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    if other.startswith(one):
        return len(one)
    return next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def unfinished(output_format: OutputFormat, reasoning: str, content: str, *, closed: bool = False) -> str:
    """Write reasoning and content in the model's format without closing the last part, so that the model continues it.
    closed: close the reasoning even if there is no content yet."""
    if closed and reasoning and not content:
        return write(output_format, reasoning=reasoning, content=_TO_COME).partition(_TO_COME)[0]
    text = write(output_format, reasoning=reasoning, content=content)
    last = content or reasoning
    return text[: text.rfind(last) + len(last)] if last else text


def written_stage(output_format: OutputFormat, text: str) -> OutputStage:
    """Return the stage in which the output after a prompt starts, by the last marker of the format in the assistant's
    message (everything from the last message header on, or the whole text if there is none)."""
    header = output_format.message_start.strip()
    message = text[text.rfind(header) :] if header and header in text else text
    reasoning = output_format.reasoning
    if (tools := output_format.tools) and (opener := call_opener(tools)):
        closer = call_closer(tools)
        if message.rfind(opener) > message.rfind(closer or opener + "\0"):
            return (
                "TOOL_CALL_STAGE"
                if reasoning is None or not open_marker(message, reasoning.start, reasoning.end)
                else ("REASONING_STAGE")
            )
    if reasoning is None:
        return "CONTENT_STAGE"
    if open_marker(message, reasoning.start, reasoning.end):
        return "REASONING_STAGE"
    if reasoning.initial == "reasoning" and _last(message, reasoning.end) < 0:
        return "REASONING_STAGE"
    return "CONTENT_STAGE"


def open_marker(text: str, starts: tuple[str, ...], ends: tuple[str, ...]) -> bool:
    """Return whether the last marker in the text is an opening one."""
    return _last(text, starts) > _last(text, ends)


def _last(text: str, marks: tuple[str, ...]) -> int:
    return max((text.rfind(mark.strip()) for mark in marks if mark.strip()), default=-1)
