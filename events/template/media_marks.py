"""Marks for media in the text of messages while these are arranged; they become parts at the end.

Messages are merged, moved and changed to another role as text. A mark moves with its text, so that each medium stays in
its position.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ag_ui.core import ContentPart

from events.template.environment import Message

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Two Unicode noncharacters, which text should not contain. Between them a mark has a nonce, which no client can know,
and the index of its medium."""


PARTS: dict[str, Message] = {"image": {"type": "image"}, "audio": {"type": "audio", "audio": ""}}
"""The parts as templates recognise them: by type or by a key (`'audio' in content`, Qwen2-Audio)."""


class Marks:
    """The media of one conversation. takes: the kinds of media that the model supports. nonce: random letters and
    digits."""

    def __init__(self, takes: Collection[str], nonce: str) -> None:
        self.takes = takes
        self.media: list[ContentPart] = []
        self._open = f"{OPEN}{nonce}."

    def mark(self, part: ContentPart) -> str:
        """Add a part and return its mark."""
        self.media.append(part)
        return f"{self._open}{len(self.media) - 1}{CLOSE}"

    def unmark(self, messages: Sequence[Message]) -> tuple[list[Message], tuple[ContentPart, ...]]:
        """Replace the marks in messages by the templates' own parts. Return the messages and the media in the order of
        these parts. Media whose text is no longer in a message's content are left out."""
        shaped: list[Message] = []
        media: list[ContentPart] = []
        for message in messages:
            content = message.get("content")
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
            if not any(self._open in text for text in texts):
                shaped.append(message)
                continue
            parts: list[Message] = []
            for text in texts:
                before, *marked = text.split(self._open)
                parts += [{"type": "text", "text": before}] if before else []
                for piece in marked:
                    index, _, after = piece.partition(CLOSE)
                    media.append(self.media[int(index)])
                    parts.append(dict(PARTS[media[-1].type]))
                    parts += [{"type": "text", "text": after}] if after else []
            shaped.append({**message, "content": parts})
        return shaped, tuple(media)
