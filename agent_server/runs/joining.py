"""Clients that repeat a request after their server ended join the resumed run instead of starting a second one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.runs.execution import Ending, Recorder, RunContext
from events.metadata import error_metadata
from events.vocabulary import CancelledOutcome, RunError, RunFinished, RunStarted, SuccessOutcome

if TYPE_CHECKING:
    from agent_server.runs.sharing.interfaces import AnyRun


RETRY_SECONDS = 30.0
"""How long after a run's end a client may repeat its request because its server ended before sending the end."""


def request_digest(input: RunAgentInput) -> str:
    """Hash a run's answers to interrupts or its last message, "" if it has neither. A client that repeats a request
    sends the same, except for the ids of messages."""
    if input.resume:
        request: object = [entry.model_dump(mode="json", by_alias=True) for entry in input.resume]
    elif input.messages:
        request = input.messages[-1].model_dump(mode="json", by_alias=True, exclude={"id"})
    else:
        return ""
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()


def bare_input(input: RunAgentInput) -> msgspec.Raw:
    """Return the input without its content, in wire form: enough to replay a run's events."""
    bare = input.model_copy(
        update={"messages": [], "tools": [], "context": [], "forwarded_props": {}, "state": None, "resume": None}
    )
    return msgspec.Raw(bare.model_dump_json(by_alias=True, exclude_none=True).encode())


class JoinedRun(msgspec.Struct):
    """The stored form of a run that follows another one, so that every server finds it under its id. joins: the id of
    the followed run. input: see `bare_input`."""

    joins: str
    agent: str
    input: msgspec.Raw


class Joining:
    """An agent that repeats the events of another run under this run's id. Cancelling it cancels the other run."""

    def __init__(self, followed: AnyRun) -> None:
        self.name = followed.agent
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._followed = followed

    async def run(self, context: RunContext, recorder: Recorder) -> Ending:
        reader = self._followed.events()
        try:
            async for _, event in reader:
                if isinstance(event, RunError):
                    retryable = bool(error_metadata(event).retryable)
                    raise RequestError(
                        "unavailable" if retryable else "internal", event.message, None, 1.0 if retryable else None
                    )
                if isinstance(event, RunFinished):
                    recorder.usage = {each.model or "": each for each in event.usage or ()}
                    was_cancelled = isinstance(event.outcome, CancelledOutcome)
                    reason = "cancelled" if was_cancelled else str((event.metadata or {}).get("finishReason") or "stop")
                    return Ending(outcome=event.outcome or SuccessOutcome(), result=event.result, reason=reason)
                if not isinstance(event, RunStarted):
                    recorder.emit(event)
        except asyncio.CancelledError:
            if self.is_cancelled():
                with contextlib.suppress(RequestError):
                    await self._followed.cancel()
            raise
        finally:
            await reader.aclose()
        raise RequestError("unavailable", "The resumed run can no longer be followed.", retry_after=1.0)

    async def close(self) -> None:
        """Nothing to release."""
