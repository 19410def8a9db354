"""How much of the model's reasoning clients see, and how it returns for the next prompt.

"full": clients get the reasoning as the model writes it. "summary": they get a summary, and the reasoning encrypted.
"hidden": they get only the encrypted reasoning. An encrypted value belongs to a reasoning message, so hidden reasoning
still has an empty one (AG-UI 1.0, REASONING_ENCRYPTED_VALUE).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal

from ag_ui.core import Message, ReasoningMessage

from agent_server.agents.sealing import Sealer
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    ReasoningMessageEnd,
)

ReasoningMode = Literal["full", "summary", "hidden"]
Summarise = Callable[[str], Awaitable[str]]


class ReasoningPolicy:
    """Rewrites one run's reasoning events for "summary" and "hidden". Values are bound to thread and message."""

    def __init__(
        self, mode: ReasoningMode, sealer: Sealer, *, tenant: str, thread_id: str, summarise: Summarise | None = None
    ) -> None:
        self._mode = mode
        self._sealer = sealer
        self._tenant = tenant
        self._thread_id = thread_id
        self._summarise = summarise
        self._pending: dict[str, list[str]] = {}

    async def visible(self, event: Event) -> list[Event]:
        """The events that clients get for one of the model's events."""
        if self._mode == "full":
            return [event]
        if isinstance(event, ReasoningMessageContent):
            self._pending.setdefault(event.message_id, []).append(event.delta)
            return []
        if isinstance(event, ReasoningMessageEnd):
            id = event.message_id
            text = "".join(self._pending.pop(id, ()))
            summary = ""
            if self._mode == "summary" and self._summarise is not None and text.strip():
                summary = await self._summarise(text)
            deltas = [ReasoningMessageContent(message_id=id, delta=summary)] if summary else []
            value = self._sealer.seal(text, tenant=self._tenant, thread_id=self._thread_id, message_id=id)
            return [*deltas, event, ReasoningEncryptedValue(subtype="message", entity_id=id, encrypted_value=value)]
        return [event]

    def skip_summaries(self) -> None:
        """The turn failed or was cancelled: do not summarise its reasoning."""
        self._summarise = None


def unsealed(
    messages: Sequence[Message], sealer: Sealer, *, tenant: str, thread_id: str, warn: Callable[[str], None]
) -> Iterator[Message]:
    """The conversation with sealed reasoning decrypted for the prompt; a value that cannot be decrypted is left out,
    with a warning."""
    for message in messages:
        if not isinstance(message, ReasoningMessage) or not message.encrypted_value:
            yield message
            continue
        text = sealer.open(message.encrypted_value, tenant=tenant, thread_id=thread_id, message_id=message.id)
        if text is not None:
            yield message.model_copy(update={"content": text})
        else:
            warn("An encrypted reasoning value could not be opened and was ignored.")
            yield message.model_copy(update={"encrypted_value": None})
