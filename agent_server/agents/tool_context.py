"""The context of a tool call: shared state, progress, partial results, and a person's answers to its questions."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from agent_server.user import NOBODY, User
from events.vocabulary import ActivityDelta, ActivitySnapshot, Event

APPROVAL = "tool_call"
"""The reason of interrupts that ask for approval of a call; a tool's questions have other reasons."""


class InputRequired(Exception):
    """A tool stopped to ask a person a question. Raised by `ToolContext.ask`; the run ends with an interrupt.

    metadata: of the interrupt; its `declinePayload` is an answer that need not fit the schema. continuation: JSON that
    is stored with the interrupt and returned with the answer in `ToolContext.continuation`.
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
    """The context of one call. It may be used from the thread that a plain function runs in.

    Attributes:
        tool_call_id: The id of the call.
        tool_name: The tool's name.
        thread_id: The conversation.
        run_id: The run.
        tenant: The tenant whose key or token started the run.
        forwarded_props: The request's `forwardedProps`.
        state: The shared state, a JSON object. Change it in place: clients get the difference when the tool returns, or
            at once on `push_state()`.
        continuation: The data stored with the question that the last answer is for.
        may_ask: Whether a person can be asked in this run.
        user: On whose behalf the run works, with the claims and headers that the agent's `forward` names.
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
        keep: Callable[[object], Awaitable[None]] | None = None,
        is_leaving: Callable[[], bool] = lambda: False,
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
        self._keep = keep
        self._is_leaving = is_leaving
        self.has_handle = False
        self._questions_asked = 0
        self._cancelled = False
        self._loop = asyncio.get_running_loop()

    @property
    def answers(self) -> list[Any]:
        """The answers so far, in the order of the questions."""
        return list(self._answers)

    @property
    def cancelled(self) -> bool:
        """True once the call was abandoned and its result will not be used. Plain functions should check it, since a
        thread cannot be stopped."""
        return self._cancelled

    def cancel(self) -> None:
        """Mark the call as abandoned."""
        self._cancelled = True

    @property
    def is_leaving(self) -> bool:
        """Whether the call ends because this server is stopping. Another server resumes the run if it is stored."""
        return self._is_leaving()

    async def keep_handle(self, handle: object) -> None:
        """Store a handle, which is JSON, by which the call's result can be fetched.

        A server that resumes the run repeats the call with the handle as `continuation`, even if the tool is not
        idempotent.
        """
        self.continuation, self.has_handle = handle, True
        if self._keep is not None:
            await self._keep(handle)

    def attempt(self) -> ToolContext:
        """A copy of the context for one attempt at the call, with its own cancellation and starting at the first
        question."""
        copied = copy.copy(self)
        copied._questions_asked = 0
        return copied

    def progress(self, content: Mapping[str, object] | str) -> None:
        """Show the call's progress as an activity. It replaces the progress shown before.

        content: JSON, or a text, which becomes `{"message": text}`.
        """
        content_shown = {"message": content} if isinstance(content, str) else dict(content)
        self._on_loop(lambda: self._progress(content_shown))

    def partial(self, piece: object) -> None:
        """Show a piece of the result that is available already: it is appended to `parts` of the call's activity, and
        only the piece is sent. The model gets the result alone.

        piece: JSON.
        """
        snapshot = msgspec.json.decode(msgspec.json.encode(piece))  # copies it, and raises here if it is not JSON
        self._on_loop(lambda: self._partial(snapshot))

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
        """Ask a person a question and return the answer; None if the question was cancelled or expired.

        The first call ends the run with an interrupt, by raising InputRequired: do not catch it. Once there is an
        answer, the tool is called again with the same arguments and this returns the answer, so everything that a tool
        does before it asks must be safe to repeat.

        Args:
            message: The question.
            schema: JSON schema that the answer must fit; None accepts any answer.
            reason: The interrupt's reason.
            seconds: Time limit of the answer, in seconds; None for no limit.

        Raises:
            InputRequired: While there is no answer.
            ValueError: For the reason of approvals, "tool_call".
        """
        if reason == APPROVAL:
            raise ValueError(
                f"The reason {APPROVAL!r} is reserved for approvals. Use another, such as 'input_required'."
            )
        if self._questions_asked < len(self._answers):
            self._questions_asked += 1
            return self._answers[self._questions_asked - 1]
        raise InputRequired(message, schema, reason, seconds)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._cancelled:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in the thread of a plain function

            async def call_on_loop() -> None:
                call()

            asyncio.run_coroutine_threadsafe(call_on_loop(), self._loop).result(10)
        else:
            call()


KIND = "tool_progress"
PARTS = "parts"


class ToolActivity:
    """One call's activity; nothing is sent before there is something to show.

    Progress replaces the earlier progress and is sent as a whole. From the first partial result on, only differences
    are sent, so that a long result does not travel again with every piece.
    """

    def __init__(self, id: str, call: Mapping[str, str], emit: Callable[[Event], None]) -> None:
        self._id = id
        self._call = dict(call)
        self._emit = emit
        self._progress: dict[str, object] = {}
        self._has_parts = False

    def progress(self, content: Mapping[str, object]) -> None:
        """Show progress, replacing what was shown before."""
        if not self._has_parts:
            self._progress = dict(content)
            self._snapshot()
            return
        content = {key: value for key, value in content.items() if key != PARTS}
        removals: list[dict[str, object]] = [
            {"op": "remove", "path": _pointer(key)} for key in self._progress if key not in content
        ]
        additions = [{"op": "add", "path": _pointer(key), "value": value} for key, value in content.items()]
        self._progress = dict(content)
        self._patch([*removals, *additions])

    def partial(self, piece: object) -> None:
        """Add a piece of the result."""
        if self._has_parts:
            self._patch([{"op": "add", "path": f"/{PARTS}/-", "value": piece}])
            return
        self._has_parts = True
        self._progress.pop(PARTS, None)
        self._snapshot({PARTS: [piece]})

    def _snapshot(self, more: Mapping[str, object] | None = None) -> None:
        content = {**self._call, **self._progress, **(more or {})}
        self._emit(ActivitySnapshot(message_id=self._id, activity_type=KIND, content=content))

    def _patch(self, patch: list[dict[str, object]]) -> None:
        if patch:
            self._emit(ActivityDelta(message_id=self._id, activity_type=KIND, patch=patch))


def _pointer(key: str) -> str:
    """A key as a JSON pointer (RFC 6901)."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
