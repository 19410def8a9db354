"""Raw completions: the output of a prompt that was given as text becomes one message and is not parsed.

Nothing is trimmed, held back or looked for in it, so what the tokens say is what the client gets, but for special
tokens that it did not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from events.metadata import Scored
from events.vocabulary import Event, TextMessageContent, TextMessageEnd, TextMessageStart


class PlainTranslator:
    """Has the face of `events.translator.Translator`."""

    def __init__(self, new_id: Callable[[str], str], hidden: Mapping[int, str] | None = None) -> None:
        """hidden: tokens whose spelling is not shown, by id."""
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
        """One delta for each token that has text; with `detail`, for each token, since its row must be seen too.
        is_reasoning: an engine's word, which plain text has no use for."""
        if token_id is not None and token_id in self._hidden:
            text = text.removesuffix(self._hidden[token_id])
        if not text and detail is None:
            return []
        metadata = None if detail is None else {"tokens": [detail]}
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
