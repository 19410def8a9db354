"""What the prompt already holds of the message that the model goes on with."""

from __future__ import annotations

from collections.abc import Sequence

from events.formats.output_format import Reasoning


def written_by_prompt(opened: str, header: str, message_marks: Sequence[str], show: bool) -> str | None:
    """The part of `opened` that belongs to the message itself: the text behind its header; None if that cannot be
    told. message_marks: markers that begin messages; a header that is a message's own (`<|start|>assistant`) belongs
    to it. show: whether all of a text without header is meant to be the message's."""
    if not header or header not in opened:
        return opened if show and not header else None
    own = min((place for mark in message_marks if (place := header.find(mark)) >= 0), default=len(header))
    return header[own:] + opened.partition(header)[2]


def thoughts_apart(reasoning: Reasoning | None, written: str) -> tuple[str, str]:
    """(text, opener), where reasoning stays in the content: blocks that the prompt closed are left out, for they are
    empty or the client's own; an opener at the end of the prompt is said once the model's own text follows it."""
    if reasoning is None:
        return written, ""
    for end in map(str.strip, reasoning.end):
        _, mark, rest = written.rpartition(end)
        written = rest.lstrip() if mark else written
    starts = [mark for mark in map(str.strip, reasoning.start) if mark and written.rstrip().endswith(mark)]
    place = written.rfind(starts[0]) if starts else len(written)
    return written[:place], written[place:]
