"""What a tool can use besides its arguments: the shared state, progress, partial results, and a person's answer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agent_server.user import NOBODY, User
from events.vocabulary import ActivityDelta, ActivitySnapshot, Event

APPROVAL = "tool_call"
"""The reason of interrupts that ask whether a call may be made; a tool's questions have other reasons."""


class InputRequired(Exception):
    """A tool stopped to ask a person. Raised by `ToolContext.ask`; the run ends with an interrupt.

    metadata: of the interrupt; its `declinePayload` is an answer that need not fit the schema. continuation: JSON that
    is stored with the interrupt and handed back with the answer, in `ToolContext.continuation`.
    """

    def __init__(
        self,
        message: str,
        schema: dict[str, object] | None,
        reason: str,
        seconds: float | None,
        *,
        metadata: dict[str, object] | None = None,
        continuation: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.schema = schema
        self.reason = reason
        self.seconds = seconds
        self.metadata = metadata
        self.continuation = continuation


class ToolContext:
    """What a tool can use besides its arguments. All of it may be used from the thread that a plain function runs in.

    Attributes:
        tool_call_id: The id of the call.
        tool_name: The tool's name.
        thread_id: The conversation.
        run_id: The run.
        tenant: The tenant whose key or token began the run.
        forwarded_props: The request's `forwardedProps`.
        state: The shared state, a JSON object. Change it in place: clients are sent the difference when the tool
            returns, or at once on `push_state()`.
        continuation: What was stored with the question that the last answer is for.
        may_ask: Whether a person can be asked on this wire.
        user: Who asked for the run, with the claims and headers that the agent's `forward` names.
    """

    def __init__(
        self,
        *,
        tool_call_id: str,
        tool_name: str,
        thread_id: str,
        run_id: str,
        tenant: str,
        forwarded_props: object,
        state: dict[str, object],
        push_state: Callable[[], None],
        progress: Callable[[Mapping[str, object]], None],
        partial: Callable[[object], None],
        answers: Sequence[object] = (),
        continuation: object = None,
        may_ask: bool = True,
        user: User = NOBODY,
    ) -> None:
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name
        self.thread_id = thread_id
        self.run_id = run_id
        self.tenant = tenant
        self.forwarded_props = forwarded_props
        self.state = state
        self._push_state = push_state
        self._progress = progress
        self._partial = partial
        self._answers = list(answers)
        self.continuation = continuation
        self.may_ask = may_ask
        self.user = user
        self._asked = 0
        self._cancelled = False
        self._loop = asyncio.get_running_loop()

    @property
    def answers(self) -> list[Any]:
        """The answers that were given so far, in the order in which they are asked for."""
        return list(self._answers)

    @property
    def cancelled(self) -> bool:
        """True once the call was given up, so that its result is not used. Plain functions look at it, since a thread
        cannot be stopped."""
        return self._cancelled

    def cancel(self) -> None:
        """Mark the call as given up."""
        self._cancelled = True

    def attempt(self) -> ToolContext:
        """The same surroundings for one attempt at the call, which asks its questions from the first on and is given
        up by itself."""
        made = copy.copy(self)
        made._asked = 0
        return made

    def progress(self, content: Mapping[str, object] | str) -> None:
        """Show progress as an activity beside the call; a later one replaces an earlier one.

        content: JSON, or a text, which becomes `{"message": text}`.
        """
        shown = {"message": content} if isinstance(content, str) else dict(content)
        self._on_loop(lambda: self._progress(shown))

    def partial(self, piece: object) -> None:
        """Show a piece of the result early: it is added to `parts` of the activity beside the call, and sent alone.

        piece: JSON. The model is given the result only.
        """
        shown = msgspec.json.decode(msgspec.json.encode(piece))  # as it is now, and an error here for what is no JSON
        self._on_loop(lambda: self._partial(shown))

    def push_state(self) -> None:
        """Send what changed in `state` now instead of when the tool returns."""
        self._on_loop(self._push_state)

    def ask(
        self,
        message: str,
        schema: dict[str, Any] | None = None,
        *,
        reason: str = "input_required",
        seconds: float | None = None,
    ) -> Any:
        """Ask a person, and return the answer; None if the question was cancelled or its time passed.

        The first time this ends the run with an interrupt, by raising InputRequired: let it pass. When the answer is
        there, the tool is called again with the same arguments and `ask` returns the answer, so whatever a tool does
        before it asks must be harmless to do twice.

        Args:
            message: The question.
            schema: JSON schema that the answer must fit; None takes any.
            reason: The interrupt's reason.
            seconds: How long the answer may take; None sets no limit.

        Raises:
            InputRequired: While there is no answer.
            ValueError: For the reason of approvals, "tool_call".
        """
        if reason == APPROVAL:
            raise ValueError(f"The reason {APPROVAL!r} is that of approvals. Use another, such as 'input_required'.")
        if self._asked < len(self._answers):
            self._asked += 1
            return self._answers[self._asked - 1]
        raise InputRequired(message, schema, reason, seconds)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._cancelled:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            done = asyncio.run_coroutine_threadsafe(_called(call), self._loop)
            done.result(10)
        else:
            call()


async def _called(call: Callable[[], None]) -> None:
    call()


KIND = "tool_progress"
PARTS = "parts"


class ToolActivity:
    """One call's activity; nothing is sent before there is something to show.

    Progress replaces what was shown before and is sent whole. From the first piece on only differences are sent, so
    that a long result does not go over the wire once a piece.
    """

    def __init__(self, id: str, call: Mapping[str, str], emit: Callable[[Event], None]) -> None:
        self._id = id
        self._call = dict(call)
        self._emit = emit
        self._shown: dict[str, object] = {}
        self._streams = False

    def progress(self, content: Mapping[str, object]) -> None:
        """Show how far it is, in the place of what was said of that before."""
        if not self._streams:
            self._shown = dict(content)
            self._snapshot()
            return
        content = {key: value for key, value in content.items() if key != PARTS}
        gone: list[dict[str, object]] = [
            {"op": "remove", "path": _pointer(key)} for key in self._shown if key not in content
        ]
        new = [{"op": "add", "path": _pointer(key), "value": value} for key, value in content.items()]
        self._shown = dict(content)
        self._change([*gone, *new])

    def partial(self, piece: object) -> None:
        """Add a piece of the result."""
        if self._streams:
            self._change([{"op": "add", "path": f"/{PARTS}/-", "value": piece}])
            return
        self._streams = True
        self._shown.pop(PARTS, None)
        self._snapshot({PARTS: [piece]})

    def _snapshot(self, more: Mapping[str, object] | None = None) -> None:
        content = {**self._call, **self._shown, **(more or {})}
        self._emit(ActivitySnapshot(message_id=self._id, activity_type=KIND, content=content))

    def _change(self, patch: list[dict[str, object]]) -> None:
        if patch:
            self._emit(ActivityDelta(message_id=self._id, activity_type=KIND, patch=patch))


def _pointer(key: str) -> str:
    """A key as a JSON pointer (RFC 6901)."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
