"""Pictures and sounds on their way through the arranging of messages: marks in the text, which become parts at the end.

Messages are merged, moved and turned into another role's words as text. A mark goes with the text that it stands in, so
that each stays where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from ag_ui.core import ContentPart

from events.template.environment import Message

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Two of Unicode's noncharacters, which no text should have; a mark has more of the first than any text that does."""


PARTS: dict[str, Message] = {"image": {"type": "image"}, "audio": {"type": "audio", "audio": ""}}
"""As templates know them by their type, or by a key (`'audio' in content`, Qwen2-Audio)."""


class Marks:
    """The media of one conversation. `texts`: all that is said in it, which no mark may be mistaken for. takes: kinds
    of media that the model takes."""

    def __init__(self, texts: Iterable[str], takes: Collection[str]) -> None:
        longest = max((len(run) for text in texts for run in re.findall(f"{OPEN}+", text)), default=0)
        self._open = OPEN * (longest + 1)
        self._pattern = re.compile(f"{self._open}(\\d+){CLOSE}")
        self.takes = takes
        self.media: list[ContentPart] = []

    def mark(self, part: ContentPart) -> str:
        """What stands for the part in a text."""
        self.media.append(part)
        return f"{self._open}{len(self.media) - 1}{CLOSE}"

    def unmark(self, messages: Sequence[Message]) -> tuple[list[Message], tuple[ContentPart, ...]]:
        """The messages with the templates' own parts in place of the marks, and the media in the order of these parts.
        One whose text went elsewhere than into a message's content is not among them."""
        found: list[int] = []
        shaped = [self._shaped(message, found.append) for message in messages]
        return shaped, tuple(self.media[number] for number in found)

    def _shaped(self, message: Message, take: Callable[[int], None]) -> Message:
        content = message.get("content")
        texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
        if not any(self._pattern.search(text) for text in texts):
            return message
        return {**message, "content": [part for text in texts for part in self._parts(text, take)]}

    def _parts(self, text: str, take: Callable[[int], None]) -> Iterable[Message]:
        for index, piece in enumerate(self._pattern.split(text)):
            if index % 2:
                take(int(piece))
                yield dict(PARTS[self.media[int(piece)].type])
            elif piece:
                yield {"type": "text", "text": piece}
