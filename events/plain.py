"""Raw completions: the output for a text prompt becomes one message and is not parsed.

Nothing is trimmed or held back, so the client gets exactly the tokens' text, except for special tokens that it did not
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from events.metadata import Scored, token_metadata
from events.vocabulary import Event, TextMessageContent, TextMessageEnd, TextMessageStart


class PlainTranslator:
    """Translates unparsed output, with the interface of `events.translator.Translator`."""

    def __init__(self, new_id: Callable[[str], str], hidden: Mapping[int, str] | None = None) -> None:
        """hidden: id → text of special tokens that are left out."""
        self._hidden = hidden or {}
        self._message_id = new_id("message")
        self._open = False
        self.warnings: list[str] = []
        self.calls = 0
        self.failed = self.ended = False
        self.reasoning = False
        self.unsent: list[Scored] = []

    def feed(
        self, text: str, token_id: int | None = None, detail: Scored | None = None, is_reasoning: bool | None = None
    ) -> list[Event]:
        """Return a delta for a token with text or, with `detail`, for every token, since its row must be sent as well.
        is_reasoning: ignored in plain text."""
        if token_id is not None and token_id in self._hidden:
            text = text.removesuffix(self._hidden[token_id])
        if not text and detail is None:
            return []
        metadata = None
        if detail is not None:
            # A special token that is left out is no part of the text.
            metadata = token_metadata([detail], [detail] if text or not detail[1] else [])
        content = TextMessageContent(message_id=self._message_id, delta=text, metadata=metadata)
        if self._open:
            return [content]
        self._open = True
        return [TextMessageStart(message_id=self._message_id, role="assistant"), content]

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        return not self._hidden or not any(token_id in self._hidden for token_id in token_ids)

    def finish(self, reason: str = "stop", stop: str | int | None = None) -> list[Event]:
        return self.abort()

    def abort(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        return [TextMessageEnd(message_id=self._message_id)]

    def finish_reason(self, reason: str) -> str:
        return reason
