"""A client that asks again for a run whose server ended: it gets the one that goes on, and no second one begins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ag_ui.core import Message, RunAgentInput

from adapters.errors import RequestError
from agent_server.runs.execution import Ending, Recorder, RunContext
from events.metadata import error_metadata
from events.vocabulary import CancelledOutcome, RunError, RunFinished, RunStarted, SuccessOutcome

if TYPE_CHECKING:
    from agent_server.runs.sharing.interfaces import AnyRun


def is_retry(asked: RunAgentInput, going_on: RunAgentInput) -> bool:
    """Whether a client asks for the same again: its last message, or its answers, are those of the run that goes on.
    Ids of messages do not count, since clients give new ones to what they send again."""
    if asked.resume or going_on.resume:
        return asked.resume == going_on.resume
    return bool(asked.messages) and _last(asked) == _last(going_on)


def _last(input: RunAgentInput) -> object:
    if not input.messages:
        return None
    message: Message = input.messages[-1]
    return message.role, getattr(message, "content", None), getattr(message, "tool_call_id", None)


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
