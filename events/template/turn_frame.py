"""The frame of the model's text: the assistant's header, the end of its turn, the generation prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from events.template import probe as words
from events.template.difference import (
    THOUGHT_WORD,
    after,
    between,
    common_prefix,
    common_prefix_of,
    common_suffix,
    is_marker,
    segments,
)
from events.template.probe import Probe

END_OF_SEQUENCE = "<|END-OF-SEQUENCE|>"  # the eos_token while a template is analysed


class TurnFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one template, each exactly as rendered.

    opening: the text between the user's content and the assistant's. message_start: its part that begins the
    assistant's message. end: the text after the assistant's content, up to the next message. prompt: what the
    generation prompt adds after `opening`. unconditional: the template always adds the generation prompt. stops: the
    markers that end a turn: those of `end`, or of the next message's header if nothing else ends a turn (GLM).
    """

    opening: str = ""
    message_start: str = ""
    end: str = ""
    prompt: str = ""
    unconditional: bool = False
    stops: tuple[str, ...] = ()

    def assistant_text(self, text: str) -> str:
        """Return the assistant's part of a rendering that ends with an assistant message, without header and end."""
        tail = after(text, words.USER)
        common_length = len(common_prefix(tail, self.opening))
        start = tail.find(self.message_start) if self.message_start else -1
        has_header = start >= 0 and not tail[common_length:start].strip()
        tail = tail[max(common_length, start + len(self.message_start) if has_header else 0) :]
        if self.unconditional and self.message_start and self.message_start in tail:
            tail = tail[: tail.rfind(self.message_start)]
        return without_end(tail, self.end)


def without_end(text: str, end: str) -> str:
    """Remove the end of the turn from a text, regardless of its outer whitespace."""
    for candidate in (end, end.rstrip(), end.strip()):
        if candidate.strip() and text.endswith(candidate):
            return text[: -len(candidate)]
    trimmed = text.rstrip()
    if end.strip() and trimmed.endswith(end.strip()):
        return trimmed[: -len(end.strip())]
    return text


def find_turn(probe: Probe, switches: list[dict[str, Any]]) -> TurnFrame:
    """Determine the frame by comparing conversations that differ only in how the assistant's message begins.

    switches: additional settings of the template's variables, so that an opened or closed reasoning block is not
    mistaken for a part of the header.
    """
    plain = probe.render([words.user()])
    if plain is None:
        return TurnFrame()
    tail = after(plain, words.USER)
    prompts = [text for text in (generation_prompt(probe, extra) for extra in ({}, *switches)) if text is not None]
    default = prompts[0] if prompts else None
    # The template always adds a generation prompt if one also follows a finished answer.
    answered = probe.render([words.user(), words.assistant()]) if default == "" else None
    unconditional = False
    if answered is not None and words.CONTENT in answered:
        marks, behind = [part for part in segments(tail) if is_marker(part)], after(answered, words.CONTENT)
        unconditional = len(marks) >= 2 and marks[-1] in behind and marks[-1] != marks[0]
    if unconditional:
        prompts = [after(probe.render([words.user()], **extra) or plain, words.USER) for extra in ({}, *switches)]
        user_end = ""
    else:
        user_end = common_prefix(tail, after(probe.render([words.user()], prompt=True) or plain, words.USER))
    beginnings = [text[len(user_end) :] for text in _before_assistant(probe) if text.startswith(user_end)]
    headers = [*prompts, *beginnings]
    header = common_prefix_of(headers)
    if not header.strip():  # they may differ in their leading white space alone
        header = common_prefix_of([text.lstrip() for text in headers])
    start = without_thought(header)
    if unconditional:
        # The user's message ends with the first marker of the opening and the white space after it.
        parts = segments(start)
        mark = next((index for index, part in enumerate(parts[:-1]) if is_marker(part)), None)
        if mark is not None:
            user_end = "".join(parts[: mark + 1]) + ("" if parts[mark + 1].strip() else parts[mark + 1])
        start = start[len(user_end) :]
    end = _end_of_turn(probe, start if unconditional else "")
    if end.strip() and start.startswith(end) and start != end:  # the last user's message ends where an answer begins
        user_end, start = user_end + end, start[len(end) :]
    return TurnFrame(
        opening=user_end + start,
        message_start=start,
        end=end,
        prompt=(prompts[0] if prompts else "")[len(start) + (len(user_end) if unconditional else 0) :],
        unconditional=unconditional,
        stops=(markers_of(end) or _next_headers(probe)) + _other_ends(probe, end),
    )


def generation_prompt(probe: Probe, extra: dict[str, Any]) -> str | None:
    """Return what `add_generation_prompt` adds after the user's content, or None if that does not render. It may also
    add something before that, such as a system message of the template (Muse)."""
    without, with_prompt = probe.render([words.user()], **extra), probe.render([words.user()], prompt=True, **extra)
    if without is None or with_prompt is None:
        return None
    before, behind = after(without, words.USER), after(with_prompt, words.USER)
    return behind[len(common_prefix(before, behind)) :]


def without_thought(header: str) -> str:
    """Cut a header before its first reasoning marker, which belongs to the message."""
    parts = segments(header)
    for index, part in enumerate(parts):
        if is_marker(part) and THOUGHT_WORD.search(part):
            return "".join(parts[:index])
    return header


def _before_assistant(probe: Probe) -> list[str]:
    """Return the texts between the user's content and the assistant's, for several kinds of assistant message."""
    shape = probe.capabilities
    first = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
    conversations: list[tuple[list[dict[str, object]], str]] = [
        ([words.user(), words.assistant()], words.CONTENT),
        ([words.user(), words.assistant(), words.user(words.USER_TWO)], words.CONTENT),
    ]
    if shape.tool_calls:
        conversations.append(([words.user(), words.calling([first], shape.call_content)], words.FUNCTION))
    if shape.reasoning_field:
        thought = words.with_reasoning(words.assistant(), shape.reasoning_field)
        conversations.append(([words.user(), thought], words.REASONING))
    rendered = [(probe.render(messages), needle) for messages, needle in conversations]
    headers = [between(text[text.find(words.USER) :], words.USER, needle) for text, needle in rendered if text]
    return [text for text in headers if text is not None]


def _end_of_turn(probe: Probe, repeated_header: str) -> str:
    """Return the text that follows both an answer and a call, or else the one that follows an answer."""
    shape = probe.capabilities
    last = probe.render([words.user(), words.assistant()])
    middle = probe.render([words.user(), words.assistant(), words.user(words.USER_TWO)])
    behind = between(middle, words.CONTENT, words.USER_TWO) if middle else None
    end = _until(after(last, words.CONTENT) if last and words.CONTENT in last else "", repeated_header)
    if not end.strip():
        return _without_user_header(probe, behind) if behind and has_marker(behind) else end
    if shape.tool_calls:
        first = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
        called = probe.render([words.user(), words.calling([first], shape.call_content)]) or ""
        shared = common_suffix(end, _until(after(called, words.VALUE), repeated_header))
        if has_marker(shared):
            return shared
    return common_prefix(end, behind) or end if behind else end


def markers_of(*texts: str) -> tuple[str, ...]:
    """Return the distinct markers in the texts. Plain words are not markers, since they may also occur in content."""
    parts = [part.strip() for text in texts for part in segments(text) if has_marker(part)]
    parts = [part for part in parts if "\n" not in part]  # prose that mentions one
    return tuple(dict.fromkeys(parts))


def _other_ends(probe: Probe, end: str) -> tuple[str, ...]:
    """Return other ends of a message: the one before another turn, if it differs from the last one's (harmony's
    `<|end|>`), and that of a message which is not the last of its turn, if the template has one (`<|eom_id|>`)."""
    middle = probe.render([words.user(), words.assistant(), words.user(words.USER_TWO)])
    behind = between(middle, words.CONTENT, words.USER_TWO) if middle else None
    inner = markers_of(_without_user_header(probe, behind))[:1] if behind and end.strip() not in behind else ()
    message_ends = tuple(part for part in segments(probe.template.source) if part in ("<|eom_id|>", "<|eom|>"))
    return tuple(dict.fromkeys(part for part in inner + message_ends if part not in end))


def _next_headers(probe: Probe) -> tuple[str, ...]:
    """Return the first markers of a user message after an answer, and of a tool result after a call."""
    shape = probe.capabilities
    middle = probe.render([words.user(), words.assistant(), words.user(words.USER_TWO)]) or ""
    texts = [between(middle, words.CONTENT, words.USER_TWO) or ""]
    if shape.tool_calls and shape.tool_role:
        call = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
        conversation = [words.user(), words.calling([call], shape.call_content)]
        unanswered, answered = (
            probe.render([*conversation, *more]) for more in ((), (words.result(role=shape.tool_role),))
        )
        if unanswered and answered and answered.startswith(unanswered):
            texts.append(answered[len(unanswered) :])
    marks = [[part for part in segments(text) if is_marker(part)] for text in texts]
    return tuple(dict.fromkeys(parts[0] for parts in marks if parts))


def _until(text: str, header: str) -> str:
    return text[: text.find(header)] if header and header in text else text


def has_marker(text: str) -> bool:
    """Return whether the text contains a marker and not only words."""
    return any(is_marker(part) for part in segments(text)) or any(sign in text for sign in "<[|]")


def _without_user_header(probe: Probe, behind: str) -> str:
    """Return the end of a turn that is written only if another turn follows (Apriel)."""
    first = probe.render([words.user()])
    lead = segments(first[: first.find(words.USER)]) if first else []
    parts = segments(behind)
    marker_count = 0
    while parts and lead and parts[-1] == lead[-1]:
        if marker_count and is_marker(parts[-1]) and not any(is_marker(part) for part in parts[:-1]):
            break  # the same marker may end the system's message and the assistant's
        marker_count += is_marker(parts.pop())
        lead.pop()
    return "".join(parts)
