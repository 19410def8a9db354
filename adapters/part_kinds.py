"""Which kinds of content part a model takes, and the refusal of the others, the same on every wire."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ag_ui.core import Message, TextPart

from adapters.body import wrong
from adapters.errors import RequestError

KINDS = ("image", "audio", "video", "document")
"""Of content besides text, by AG-UI's names."""


def not_taken(kind: str, takes: Collection[str], at: str) -> RequestError:
    """A part of a kind that is not taken; `at`: where it is in the request."""
    others = " and ".join(["text", *(known for known in KINDS if known in takes)])
    return wrong(at, f"is {kind} content, and what is taken here is {others}")


def check_parts(messages: Iterable[Message], takes: Collection[str]) -> None:
    """Raises RequestError for the first part of a user's message that is not taken. What tools said stands in the
    history, where it is left out with a warning."""
    for i, message in enumerate(messages):
        content = message.content if message.role == "user" else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, TextPart) and part.type not in takes:
                raise not_taken(part.type, takes, f"messages.{i}.content.{j}")
