"""The interface of a guest: an agent of another framework that this server runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from ag_ui.core import Context, RunAgentInput
from pydantic import BaseModel, ConfigDict


class GuestError(Exception):
    """A guest's run failed; clients get the message. Any other exception of a guest is only logged."""


class GuestInput(RunAgentInput):
    """The input of a guest's run.

    thread_id: differs between tenants, so that a guest may use it as a storage key. messages: the whole conversation
    without activities. resume: with the guest's own interrupt ids. stored: the thread can be continued; otherwise the
    guest need not store anything for it.
    """

    model_config = ConfigDict(extra="ignore")
    stored: bool = True

    def plain(self) -> RunAgentInput:
        """The input as the protocol defines it."""
        return RunAgentInput.model_validate({name: getattr(self, name) for name in RunAgentInput.model_fields})


class Guest(Protocol):
    """An agent of another framework.

    kind: the framework's name. errors_for_clients: the messages of its errors may be sent to clients.
    partial_snapshots: its MESSAGES_SNAPSHOT is not the conversation; it only adds what was not streamed.
    """

    @property
    def kind(self) -> str: ...
    @property
    def errors_for_clients(self) -> bool: ...
    @property
    def partial_snapshots(self) -> bool: ...

    def run(self, input: GuestInput) -> AsyncIterator[object]:
        """Yield AG-UI events: the SDK's models, ours, or decoded JSON objects. RUN_STARTED and the terminal event are
        optional. Closing or cancelling the iterator ends the work."""

    async def close(self) -> None:
        """Release resources. Safe to call twice."""


def as_object(event: object) -> dict[str, object]:
    """An event as a decoded JSON object. Raises TypeError for anything that is not an event."""
    if isinstance(event, dict):
        return event
    if isinstance(event, BaseModel):
        return event.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(event).__name__} is not an AG-UI event.")


def context_in_words(context: Iterable[Context]) -> str | None:
    """The client's context as text for the prompt; None if there is none."""
    lines = [f"{each.description}: {each.value}" for each in context]
    return "Context from the application:\n" + "\n".join(lines) if lines else None
