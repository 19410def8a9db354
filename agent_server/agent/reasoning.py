"""How much of the model's reasoning clients see, and how it comes back for the next prompt.

"full": as it is written. "summary": a summary is shown, the reasoning travels sealed. "hidden": nothing is shown, the
reasoning travels sealed. A sealed value needs a reasoning message to be attached to, so hidden reasoning still has an
empty one (AG-UI 1.0, REASONING_ENCRYPTED_VALUE).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from ag_ui.core import Message, ReasoningMessage

from agent_server.agent.collected import Collected
from agent_server.agent.sealing import Sealer
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

    async def shown(self, event: Event, collected: Collected) -> list[Event]:
        """The events that clients get for one of the model's."""
        if self._mode == "full":
            return [event]
        if isinstance(event, ReasoningMessageContent):
            return []
        if isinstance(event, ReasoningMessageEnd):
            return [*await self._summary(event.message_id, collected), event, self._seal(event.message_id, collected)]
        return [event]

    async def _summary(self, message_id: str, collected: Collected) -> list[Event]:
        text = ""
        if self._mode == "summary" and self._summarise is not None:
            text = await self._summarise(collected.reasoning_of(message_id))
        collected.shown_reasoning[message_id] = text
        return [ReasoningMessageContent(message_id=message_id, delta=text)] if text else []

    def _seal(self, message_id: str, collected: Collected) -> Event:
        value = self._sealer.seal(
            collected.reasoning_of(message_id), tenant=self._tenant, thread_id=self._thread_id, message_id=message_id
        )
        collected.sealed[message_id] = value
        return ReasoningEncryptedValue(subtype="message", entity_id=message_id, encrypted_value=value)


def unsealed(
    messages: Sequence[Message], sealer: Sealer, *, tenant: str, thread_id: str, warn: Callable[[str], None]
) -> list[Message]:
    """The conversation with sealed reasoning opened for the prompt; what does not open is left out, with a warning."""
    found: list[Message] = []
    for message in messages:
        if not isinstance(message, ReasoningMessage) or not message.encrypted_value:
            found.append(message)
            continue
        text = sealer.open(message.encrypted_value, tenant=tenant, thread_id=thread_id, message_id=message.id)
        if text is not None:
            found.append(message.model_copy(update={"content": text}))
        else:
            warn("An encrypted reasoning value could not be opened and was ignored.")
            found.append(message.model_copy(update={"encrypted_value": None}))
    return found
