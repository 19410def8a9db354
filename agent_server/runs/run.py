"""One run as its readers and controllers see it, and the finished runs that can still be replayed.

The number, bytes and age of finished runs are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from ag_ui.core import Message, RunAgentInput

from adapters.answer import PromptNote
from adapters.errors import RequestError
from agent_server.observability.audit import note
from agent_server.runs.controls import Controls
from agent_server.runs.log import EventLog, FellBehind, LogReader
from agent_server.settings import LogLimits, RunLimits
from agent_server.user import NOBODY, User
from events.metadata import ErrorMetadata, as_metadata
from events.options import GenerationOptions
from events.vocabulary import Event, RunError

State = Literal["created", "queued", "running", "ending", "finished"]
StopReason = Literal["cancelled", "disconnected", "shutdown", "superseded"]
INSIST_SECONDS = 1.0
AHEAD = 10_000
"""How many events a client may be ahead of this server's copy of a run."""
FIRST_READER_SECONDS = 30.0  # how long a run may wait for its first reader, beyond its grace


class Run:
    """A run: its log, its controls and its readers. Created only by RunManager.

    grace: seconds that the run continues without a reader; None means for ever. whole: the input's messages are the
    whole conversation, so no message of the stored thread is missing from them. caller: whose quota it counts
    against. begins: see `EventLog`. user: the user it acts for.
    """

    def __init__(
        self,
        *,
        input: RunAgentInput,
        options: GenerationOptions,
        agent: str,
        tenant: str,
        grace: float | None,
        limits: LogLimits,
        whole: bool = False,
        caller: str = "",
        begins: int = 0,
        user: User = NOBODY,
    ) -> None:
        self.id = input.run_id
        self.thread_id = input.thread_id
        self.input = input
        self.options = options
        self.agent = agent
        self.tenant = tenant
        self.whole = whole
        self.caller = caller
        self.user = user
        self.state: State = "created"
        self.log = EventLog(limits, begins)
        self.controls = Controls()
        self.prompt: PromptNote | None = None
        self.terminal: Event | None = None
        self.stopped_by: StopReason | None = None
        self.is_resumed = False
        """Whether the run was started by another server that has ended."""
        self.owner = 0
        """This server's owner number in the store; 0 if nothing is stored."""
        self._insist_at = 0.0
        self.done = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._grace = grace
        self._input_size = sum(_size_of(message) for message in input.messages)
        self._readers = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def paused(self) -> bool:
        return self.controls.paused

    @property
    def ends_with_reader(self) -> bool:
        """Whether the run ends at once when its last reader leaves."""
        return self._grace == 0

    @property
    def readers(self) -> int:
        return self._readers

    def note_prompt(self, note: PromptNote) -> None:
        """Record the description of the run's first prompt; later calls have no effect."""
        if self.prompt is None:
            self.prompt = note

    def hold(self) -> Callable[[], None]:
        """Count a reader at another gateway. Call the returned function when it has left."""
        self._readers += 1
        self._disarm()
        return self._reader_left

    @property
    def size(self) -> int:
        """Estimated bytes of memory of the run: its log and the text of its input."""
        return self.log.bytes + self._input_size

    def events(self, after: int = 0) -> LogReader:
        """Return a reader of (sequence, event) from the first event after `after` to the terminal one.

        Raises RequestError: "invalid_request" for a number that the run has not reached, "conflict" for one that is
        no longer in the log.
        """
        self.check_position(after)
        self._readers += 1
        self._disarm()
        return LogReader(self.log, after, gap_event=fell_behind_error, on_left=self._reader_left)

    def check_position(self, after: int) -> None:
        """Raise the errors of `events(after)`.

        A client may be ahead of a resumed run, by the events that its former server sent while the store failed.
        """
        ahead = self.is_resumed and not self.finished and after - self.log.last <= AHEAD
        check_position(self.log, min(after, self.log.last) if ahead else after)

    async def wait(self) -> Event:
        """Wait for the terminal event and return it. The caller does not count as a reader."""
        await self.done.wait()
        assert self.terminal is not None
        return self.terminal

    async def cancel(self, reason: StopReason = "cancelled") -> bool:
        """Stop the run: open items are closed and the terminal event follows. Return False if it has already ended."""
        stopped = self.stop(reason)
        if stopped:
            note("run.stopped", thread=self.thread_id, run=self.id)
        return stopped

    async def pause(self) -> bool:
        """Hold back tokens. Return False if the run has ended or its engine cannot pause."""
        return not self.finished and await self.controls.pause()

    async def resume(self) -> bool:
        return not self.finished and await self.controls.resume()

    async def modify(self, changes: dict[str, object]) -> bool:
        """Change sampling parameters from the next token on.

        Raises RequestError("invalid_request") for unknown parameters and for more tokens than the caller's key allows.
        """
        check_tokens(changes, self.options.most_tokens)
        return not self.finished and await self.controls.modify(changes)

    def stop(self, reason: StopReason) -> bool:
        """Do what `cancel` does, without waiting. A repeated call cancels again: the agent's code may have swallowed
        the first cancellation."""
        if self.state in ("ending", "finished") or self.task is None:
            return False
        now = time.monotonic()
        if self.stopped_by is None:
            self.stopped_by = reason
        elif now < self._insist_at:  # it was just cancelled: let it clean up
            return True
        self._insist_at = now + INSIST_SECONDS
        if self.state != "created":  # a task cancelled before its first step would never run at all
            self.task.cancel()
        return True

    def await_reader(self) -> None:
        """Start the timer for a run without readers, with extra time for the first reader to connect."""
        if self._grace is not None:
            self._arm(self._grace + FIRST_READER_SECONDS)

    def finish(self, terminal: Event) -> None:
        """Log the terminal event and close the log."""
        self.terminal = terminal
        self.state = "finished"
        self._disarm()
        self.log.append(terminal)
        self.log.close()
        self.done.set()

    def leave(self, handover: Event) -> None:
        """End the run on this server because another one continues it. Readers get `handover`, without a number."""
        self.terminal = handover
        self.state = "finished"
        self._disarm()
        self.log.close(handover)
        self.done.set()

    def _reader_left(self) -> None:
        self._readers -= 1
        if self._readers == 0 and not self.finished and self._grace is not None:
            self._arm(self._grace)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        if seconds <= 0:
            self.stop("disconnected")
            return
        with contextlib.suppress(RuntimeError):  # no running loop: a reader collected at interpreter exit
            self._timer = asyncio.get_running_loop().call_later(seconds, self.stop, "disconnected")

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _size_of(message: Message) -> int:
    content = getattr(message, "content", None)
    if isinstance(content, str):
        return len(content) + 500
    if isinstance(content, list):
        return 500 + sum(len(part.text if part.type == "text" else part.source.value) + 200 for part in content)
    return 500 + sum(len(call.function.arguments) for call in getattr(message, "tool_calls", None) or ())


def check_tokens(changes: Mapping[str, object], most: int) -> None:
    """Raise RequestError("invalid_request") if `changes` set max_tokens above `most` or remove it; 0 allows all."""
    max_tokens = changes.get("max_tokens", 0)
    if most and (not isinstance(max_tokens, int) or max_tokens > most):
        raise RequestError("invalid_request", f"This key allows at most {most} tokens for an answer.", "max_tokens")


def check_position(log: EventLog, after: int) -> None:
    """Raise RequestError: "invalid_request" for a number not reached yet, "conflict" for one no longer in the log."""
    if after < 0 or after > log.last:
        raise RequestError("invalid_request", f"This run has no event {after} yet. Its last is {log.last}.", "after")
    if max(after, log.begins) + 1 < log.oldest:
        message = f"The events after {after} are no longer kept. Read the thread's messages instead."
        raise RequestError("conflict", message, "after")


def fell_behind_error(gap: FellBehind) -> Event:
    """Make the last event of a reader that was too slow for the log's bounds."""
    return RunError(
        message=f"This reader fell behind and events {gap.sequence} to {gap.oldest - 1} are no longer kept. "
        "The run itself continues; its thread can be read.",
        code="connection",
        metadata=as_metadata(ErrorMetadata(retryable=False, next_event=gap.oldest)),
    )


def no_such_run() -> RequestError:
    return RequestError("not_found", "There is no such run, or it ended too long ago to be replayed.")


Observer = Callable[[Run], None]
LOOK_SECONDS = 1.0


class FinishedRuns:
    """Finished runs that can be replayed, oldest first.

    forget: called with each run that is dropped. Expired runs are dropped when others are added or looked up, and by a
    timer, since a server without requests would otherwise hold its last runs for ever.
    """

    def __init__(self, limits: RunLimits, forget: Callable[[Run], None]) -> None:
        self._limits = limits
        self._forget = forget
        self._expiring: deque[tuple[float, Run]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, run: Run) -> None:
        # All are kept equally long, so the oldest is first and expiry can stop at the first one that is still valid.
        self._expiring.append((time.monotonic() + self._limits.replay_seconds, run))
        self._bytes += run.size
        if self._timer is None:
            self._set_timer()

    def forget_expired(self) -> None:
        now, limits = time.monotonic(), self._limits
        while self._expiring and (
            self._expiring[0][0] <= now or self._bytes > limits.replay_bytes or len(self._expiring) > limits.replay_runs
        ):
            _, run = self._expiring.popleft()
            self._bytes -= run.size
            self._forget(run)

    def _set_timer(self) -> None:
        """Set the timer for the oldest run's expiry, but not sooner than LOOK_SECONDS, so that one timer serves
        many."""
        self._timer = None
        if self._expiring:
            delay = max(self._expiring[0][0] - time.monotonic(), min(LOOK_SECONDS, self._limits.replay_seconds))
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self.forget_expired()
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def drop(self, run: Run) -> None:
        """Drop a run, for example one whose id is used again. No effect if it is not here."""
        entry = next((item for item in self._expiring if item[1] is run), None)
        if entry is not None:
            self._expiring.remove(entry)
            self._bytes -= run.size
