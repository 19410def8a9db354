"""What a guest is: an agent that this server runs and did not write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Protocol

from ag_ui.core import (
    Context,
    RunAgentInput,
)
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    pass


class GuestError(Exception):
    """Why a guest's run failed, in words that its client may read. Whatever else a guest raises is only logged."""


class GuestInput(RunAgentInput):
    """A run as its guest gets it.

    thread_id: differs between tenants, so that a guest may use it as the key of what it keeps. messages: the whole
    conversation without activities. resume: with the guest's own interrupt ids. kept: the thread will be continued;
    without that nothing need be kept of it.
    """

    model_config = ConfigDict(extra="ignore")
    kept: bool = True

    def plain(self) -> RunAgentInput:
        """The input as the protocol has it."""
        return RunAgentInput.model_validate({name: getattr(self, name) for name in RunAgentInput.model_fields})


class Guest(Protocol):
    """An agent of another framework.

    kind: the framework's name. careful: the words of its errors are meant for clients. partial_snapshots: its
    MESSAGES_SNAPSHOT is not the conversation, and only says what it has not streamed.
    """

    @property
    def kind(self) -> str: ...
    @property
    def careful(self) -> bool: ...
    @property
    def partial_snapshots(self) -> bool: ...

    def run(self, input: GuestInput) -> AsyncIterator[object]:
        """AG-UI events: the SDK's models, ours, or decoded JSON objects. RUN_STARTED and the terminal event may be
        left out. Closing the iterator, or cancelling it, ends the work."""

    async def close(self) -> None:
        """Let go of what it holds. Safe to call twice."""


def as_object(event: object) -> dict[str, object]:
    """An event as a decoded JSON object. Raises TypeError for what is none."""
    if isinstance(event, dict):
        return event
    if isinstance(event, BaseModel):
        return event.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(event).__name__} is not an AG-UI event.")


def context_in_words(context: Iterable[Context]) -> str | None:
    """The client's context as a model is told of it; None if there is none."""
    lines = [f"{each.description}: {each.value}" for each in context]
    return "Context from the application:\n" + "\n".join(lines) if lines else None
