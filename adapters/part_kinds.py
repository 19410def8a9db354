"""Which kinds of content part a model takes, and the refusal of the others, the same on every wire."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ag_ui.core import Message, TextPart

from adapters.body import wrong
from adapters.errors import RequestError

KINDS = ("image", "audio", "video", "document")
"""Of content besides text, by AG-UI's names."""


def not_taken(kind: str, takes: Collection[str], at: str) -> RequestError:
    """A part of a kind that is not taken; `at`: where it is in the request."""
    others = " and ".join(["text", *(known for known in KINDS if known in takes)])
    return wrong(at, f"is {kind} content, and what is taken here is {others}")


def first_asked(roles: Iterable[str]) -> int:
    """The place of the first message behind the last of an assistant's, by their roles: from there on users ask now.
    What stands before it, as what tools said anywhere, is history, in which the model is told of a part that it does
    not take, with a warning: a refusal would end the conversation for good."""
    return max((place + 1 for place, role in enumerate(roles) if role == "assistant"), default=0)


def check_parts(messages: Sequence[Message], takes: Collection[str]) -> None:
    """Raises RequestError for the first part that is not taken of what users ask now."""
    asked = first_asked(message.role for message in messages)
    for i, message in enumerate(messages):
        content = message.content if message.role == "user" and i >= asked else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, TextPart) and part.type not in takes:
                raise not_taken(part.type, takes, f"messages.{i}.content.{j}")
