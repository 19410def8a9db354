"""The frame around what the model writes: the assistant's header, the end of its turn, the generation prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from events.template import probe as words
from events.template.difference import after, between, common_prefix, common_prefix_of, is_marker, segments
from events.template.probe import Probe

END_OF_SEQUENCE = "<|END-OF-SEQUENCE|>"  # stands for eos_token while a template is analysed


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one template, each exactly as rendered.

    opening: what stands between the user's words and the assistant's. message_start: the part of it that begins the
    assistant's message. end: what follows the assistant's words, up to the next message. prompt: what the generation
    prompt adds behind `opening`, by default and with each switch (see `prompts`). unconditional: the template adds
    the generation prompt whether it is asked to or not.
    """

    opening: str = ""
    message_start: str = ""
    end: str = ""
    prompt: str = ""
    unconditional: bool = False

    def written(self, text: str) -> str:
        """The assistant's part of a rendering that ends with an assistant message, without header and end."""
        tail = after(text, words.USER)
        tail = tail[len(common_prefix(tail, self.opening)) :]
        if self.unconditional and self.message_start and self.message_start in tail:
            tail = tail[: tail.rfind(self.message_start)]
        return without_end(tail, self.end)


def without_end(text: str, end: str) -> str:
    """The text without the end of the turn, however much of its whitespace the rendering kept."""
    for candidate in (end, end.rstrip(), end.strip()):
        if candidate.strip() and text.endswith(candidate):
            return text[: -len(candidate)]
    trimmed = text.rstrip()
    if end.strip() and trimmed.endswith(end.strip()):
        return trimmed[: -len(end.strip())]
    return text


def find_turn(probe: Probe, switches: list[dict[str, Any]]) -> Turn:
    """Compare conversations that differ only in how the assistant's message comes about.

    switches: settings of the template's variables to try as well, so that an opened or closed reasoning block is not
    taken for part of the header.
    """
    plain = probe.render([words.user()])
    if plain is None:
        return Turn()
    tail = after(plain, words.USER)
    prompted = [probe.render([words.user()], prompt=True, **extra) for extra in ({}, *switches)]
    prompts = [after(text, words.USER) for text in prompted if text is not None] or [tail]
    opening = common_prefix_of([*prompts, *_before_assistant(probe)])
    unconditional = prompts[0] == tail and _header_repeats(probe, tail, opening)
    user_end = _end_of_user(opening, tail, prompts[0], unconditional)
    return Turn(
        opening=opening,
        message_start=opening[len(user_end) :],
        end=_end_of_turn(probe, opening[len(user_end) :] if unconditional else ""),
        prompt=prompts[0][len(opening) :],
        unconditional=unconditional,
    )


def _before_assistant(probe: Probe) -> list[str]:
    """What stands between the user's words and the assistant's, for several kinds of assistant message."""
    shape = probe.capabilities
    first = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
    conversations: list[tuple[list[dict[str, Any]], str]] = [
        ([words.user(), words.assistant()], words.CONTENT),
        ([words.user(), words.assistant(), words.user(words.USER_TWO)], words.CONTENT),
    ]
    if shape.tool_calls:
        conversations.append(([words.user(), words.calling([first], shape.call_content)], words.FUNCTION))
    if shape.reasoning_field:
        thought = words.with_reasoning(words.assistant(), shape.reasoning_field)
        conversations.append(([words.user(), thought], words.REASONING))
    rendered = [(probe.render(messages), needle) for messages, needle in conversations]
    found = [between(text[text.find(words.USER) :], words.USER, needle) for text, needle in rendered if text]
    return [text for text in found if text is not None]


def _header_repeats(probe: Probe, tail: str, opening: str) -> bool:
    """Whether a generation prompt is there although none was asked for: it also follows a finished answer."""
    text = probe.render([words.user(), words.assistant()])
    if text is None or not opening or words.CONTENT not in text:
        return False
    header = [part for part in segments(opening) if is_marker(part)][-1:]
    return bool(header) and header[0] in after(text, words.CONTENT)


def _end_of_user(opening: str, tail: str, prompted: str, unconditional: bool) -> str:
    """The part of `opening` that ends the user's message and does not yet begin the assistant's."""
    if not unconditional:
        return common_prefix(opening, tail) if prompted.startswith(tail) else ""
    parts = segments(opening)
    for index, part in enumerate(parts[:-1]):
        if is_marker(part):
            rest = parts[index + 1]
            return "".join(parts[: index + 1]) + ("" if rest.strip() or is_marker(rest) else rest)
    return ""


def _end_of_turn(probe: Probe, repeated_header: str) -> str:
    last = probe.render([words.user(), words.assistant()])
    middle = probe.render([words.user(), words.assistant(), words.user(words.USER_TWO)])
    behind = between(middle, words.CONTENT, words.USER_TWO) if middle else None
    end = after(last, words.CONTENT) if last and words.CONTENT in last else ""
    if repeated_header and repeated_header in end:
        end = end[: end.find(repeated_header)]
    if end.strip() and behind is not None:
        return common_prefix(end, behind) or end
    if end.strip() or behind is None:
        return end
    return _without_user_header(probe, behind)


def _without_user_header(probe: Probe, behind: str) -> str:
    """The end of a turn that is only written once another turn follows (Apriel)."""
    first = probe.render([words.user()])
    lead = segments(first[: first.find(words.USER)]) if first else []
    parts = segments(behind)
    while parts and lead and parts[-1] == lead[-1]:
        parts.pop()
        if is_marker(lead.pop()) and not any(is_marker(part) for part in parts[:-1]):
            break
    return "".join(parts)
