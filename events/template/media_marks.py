"""Marks for media in the text of messages while these are arranged; they become parts at the end.

Messages are merged, moved and changed to another role as text. A mark moves with its text, so that each medium stays in
its position.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ag_ui.core import ContentPart

from events.template.environment import Message

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Two Unicode noncharacters, which text should not contain. A mark has more of the first than any text in a row."""


PARTS: dict[str, Message] = {"image": {"type": "image"}, "audio": {"type": "audio", "audio": ""}}
"""The parts as templates recognise them: by type or by a key (`'audio' in content`, Qwen2-Audio)."""


class Marks:
    """The media of one conversation. texts: all its texts, from which marks must differ. takes: the kinds of media that
    the model supports."""

    def __init__(self, texts: Iterable[str], takes: Collection[str]) -> None:
        longest = max((len(run) for text in texts for run in re.findall(f"{OPEN}+", text)), default=0)
        self._open = OPEN * (longest + 1)
        self._pattern = re.compile(f"{self._open}(\\d+){CLOSE}")
        self.takes = takes
        self.media: list[ContentPart] = []

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
            if not any(self._pattern.search(text) for text in texts):
                shaped.append(message)
                continue
            parts: list[Message] = []
            for text in texts:
                for index, piece in enumerate(self._pattern.split(text)):
                    if index % 2:  # the number of a mark
                        media.append(self.media[int(piece)])
                        parts.append(dict(PARTS[media[-1].type]))
                    elif piece:
                        parts.append({"type": "text", "text": piece})
            shaped.append({**message, "content": parts})
        return shaped, tuple(media)
