"""A client that asks again for a run whose server ended: it gets the one that goes on, and no second one begins."""

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
"""How long after its end a run may be asked for again by a client whose server ended before it told the end."""


def asked_digest(input: RunAgentInput) -> str:
    """Of what a run is asked: its answers to interrupts, or its last message. Clients that ask for the same again send
    the same, but for ids of messages."""
    if input.resume:
        asked: object = [entry.model_dump(mode="json", by_alias=True) for entry in input.resume]
    elif input.messages:
        asked = input.messages[-1].model_dump(mode="json", by_alias=True, exclude={"id"})
    else:
        return ""
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()


def bare_input(input: RunAgentInput) -> msgspec.Raw:
    """What a run's events are told again with, in wire form: nothing of what was said."""
    bare = input.model_copy(
        update={"messages": [], "tools": [], "context": [], "forwarded_props": {}, "state": None, "resume": None}
    )
    return msgspec.Raw(bare.model_dump_json(by_alias=True, exclude_none=True).encode())


class JoinedRun(msgspec.Struct):
    """What the store keeps of a run that follows another, so that it is found under its id at any server. input: in
    wire form, without what was said."""

    joins: str
    agent: str
    input: msgspec.Raw


class Joining:
    """Tells what another run says under the id of this one. To stop it stops the other."""

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
                    stopped = isinstance(event.outcome, CancelledOutcome)
                    reason = "cancelled" if stopped else str((event.metadata or {}).get("finishReason") or "stop")
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
        raise RequestError("unavailable", "The run that goes on cannot be followed any more.", retry_after=1.0)

    async def close(self) -> None:
        """It holds nothing."""
