"""Runs that outlive their server: what is kept of one that waits for slow tools, so that a server can go on with it.

A run whose calls are answered at once is not kept: it costs nothing, and ends with its server as before. One whose
calls take longer than `ToolLimits.keep_after` is written down while they go on, and again with each result. From then
on every further call of the run is written down before it is made: a server that takes the run up knows of each call
whether it ended, and makes none again that may have done something (`Callee.repeats`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.agent.conversation import Conversation
from agent_server.agent.running import Activity, CallResult
from agent_server.agent.state import SharedState
from agent_server.pacing import in_turns
from events.options import GenerationOptions
from events.vocabulary import TokenUsage

if TYPE_CHECKING:
    from agent_server.runs import Recorder, RunContext

log = logging.getLogger("agent_server.agent")


class KeptCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call of the turn that a run waits for. asks: it was to be agreed to by a person, and is not begun. answers: to
    what the tool asked before. interrupt_id: of the interrupt whose answer allowed it. content, failed, activities: of
    its result, once it `ended`. asked: it ended with a question, so what it does before that is harmless to do twice.
    """

    id: str
    name: str
    arguments: dict[str, object] = {}
    asks: bool = False
    answers: list[object] = []
    interrupt_id: str | None = None
    message_id: str | None = None
    ended: bool = False
    asked: bool = False
    content: Any = ""
    failed: bool = False
    activities: list[Activity] = []

    @property
    def result(self) -> CallResult | None:
        if not self.ended:
            return None
        return CallResult(content=self.content, failed=self.failed, activities=tuple(self.activities))


class KeptRun(msgspec.Struct, kw_only=True):
    """A run as it stood. input: in wire form, without messages, with the state as it was. messages: the conversation
    in wire form. step: the number of the model's turn whose calls it waits for; 0 for calls that a person agreed to.
    """

    input: dict[str, object]
    options: GenerationOptions
    messages: list[dict[str, Any]]
    step: int
    calls: list[KeptCall]
    usage: list[TokenUsage] = []


def input_of(kept: KeptRun) -> RunAgentInput:
    """What the run is begun with anew. The conversation is `messages`, which the run takes from the record itself."""
    return RunAgentInput.model_validate({**kept.input, "messages": []})


class RunKeeper:
    """Keeps one run. step: the number of the model's turn that goes on."""

    def __init__(
        self, context: RunContext, recorder: Recorder, conversation: Conversation, state: SharedState, seconds: float
    ) -> None:
        self.step = 0
        self._context = context
        self._recorder = recorder
        self._conversation = conversation
        self._state = state
        self._seconds = seconds
        self._calls: dict[str, KeptCall] = {}
        self._writing = asyncio.Lock()  # a later record must not be followed by an earlier one

    @contextlib.asynccontextmanager
    async def during(self, calls: Sequence[KeptCall]) -> AsyncIterator[None]:
        """Around these calls. RequestError if the run was kept already and the store does not take them: none must be
        made of which a record that is there does not know."""
        if self._context.thread is None or all(each.ended or each.asks for each in calls):
            yield
            return
        self._calls = {each.id: each for each in calls}
        if self._recorder.kept:
            await self._write()
        timer = asyncio.create_task(self._begin(), name="keep run")
        try:
            yield
        finally:
            timer.cancel()

    async def ended(self, call_id: str, result: CallResult) -> None:
        """Keep what a call gave before anyone is told."""
        call = self._calls.get(call_id)
        if call is None:
            return
        if result.question is not None:
            call.asked = True
        else:
            call.ended, call.content, call.failed = True, result.content, result.failed
            call.activities = list(result.activities)
        if self._recorder.kept:
            await self._try()

    async def _begin(self) -> None:
        await asyncio.sleep(self._seconds)
        if not self._recorder.kept:
            self._recorder.kept = True  # before it is: what may be there must be taken away in the end
            await self._try()

    async def _try(self) -> None:
        try:
            await self._write()
        except RequestError as error:
            log.warning("a run that waits for its tools could not be kept: %s", error.message)

    async def _write(self) -> None:
        assert self._context.thread is not None
        async with self._writing:
            await self._context.thread.keep(msgspec.json.encode(await self._record()).decode())

    async def _record(self) -> KeptRun:
        source = self._context.input
        input = source.model_dump(mode="json", by_alias=True, exclude={"messages", "resume", "state"})
        return KeptRun(
            input={**input, "state": self._state.told},
            options=self._context.options,
            messages=await in_turns(self._conversation.wire()),
            step=self.step,
            calls=list(self._calls.values()),
            usage=list(self._recorder.usage.values()),
        )
