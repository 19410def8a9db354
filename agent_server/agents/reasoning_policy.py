"""How much of the model's reasoning clients see, and how it comes back for the next prompt.

"full": as it is written. "summary": a summary is shown, the reasoning travels sealed. "hidden": nothing is shown, the
reasoning travels sealed. A sealed value needs a reasoning message to be attached to, so hidden reasoning still has an
empty one (AG-UI 1.0, REASONING_ENCRYPTED_VALUE).
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
        self._written: dict[str, list[str]] = {}

    async def shown(self, event: Event) -> list[Event]:
        """The events that clients get for one of the model's."""
        if self._mode == "full":
            return [event]
        if isinstance(event, ReasoningMessageContent):
            self._written.setdefault(event.message_id, []).append(event.delta)
            return []
        if isinstance(event, ReasoningMessageEnd):
            text = "".join(self._written.pop(event.message_id, ()))
            return [*await self._summary(event.message_id, text), event, self._seal(event.message_id, text)]
        return [event]

    def hurry(self) -> None:
        """The turn broke off: make no summary of what there is."""
        self._summarise = None

    async def _summary(self, message_id: str, text: str) -> list[Event]:
        if self._mode != "summary" or self._summarise is None or not text.strip():
            return []
        summary = await self._summarise(text)
        return [ReasoningMessageContent(message_id=message_id, delta=summary)] if summary else []

    def _seal(self, message_id: str, text: str) -> Event:
        value = self._sealer.seal(text, tenant=self._tenant, thread_id=self._thread_id, message_id=message_id)
        return ReasoningEncryptedValue(subtype="message", entity_id=message_id, encrypted_value=value)


def unsealed(
    messages: Sequence[Message], sealer: Sealer, *, tenant: str, thread_id: str, warn: Callable[[str], None]
) -> Iterator[Message]:
    """The conversation with sealed reasoning opened for the prompt; what does not open is left out, with a warning."""
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
