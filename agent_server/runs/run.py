"""One run as its readers and controllers see it, and the finished runs that can still be replayed.

Finished runs are bounded in number, bytes and age.
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
"""How many events a client may have seen that have not come here yet."""
FIRST_READER_SECONDS = 30.0  # how long a run may wait for its first reader, beyond its grace


class Run:
    """A run: its log, its controls and who reads it. Made by RunManager.start alone.

    `grace` is in seconds: how long the run lives on when its last reader is gone; None: for ever. whole: its messages
    are the whole conversation, so that nothing that its thread holds is missing from them. caller: who asked for
    it, for counting. begins: see `EventLog`. user: for whom it works.
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
        """Whether another server had it, which ended."""
        self.owner = 0
        """The number under which the store knows this server; 0 where nothing is stored."""
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
        """Whether it ends at once when its last reader has left."""
        return self._grace == 0

    @property
    def readers(self) -> int:
        return self._readers

    def note_prompt(self, note: PromptNote) -> None:
        """Keep what is told of the run's first prompt; later ones change nothing."""
        if self.prompt is None:
            self.prompt = note

    def hold(self) -> Callable[[], None]:
        """Count as a reader who is elsewhere, until what is returned is called."""
        self._readers += 1
        self._disarm()
        return self._reader_left

    @property
    def size(self) -> int:
        """About how many bytes of memory the run holds: its log and the text of its input."""
        return self.log.bytes + self._input_size

    def events(self, after: int = 0) -> LogReader:
        """(sequence, event) from the first event after `after` to the terminal one, replayed and then live.

        Raises RequestError("invalid_request") for a number not given yet and "conflict" for one no longer kept.
        """
        self.check_position(after)
        self._readers += 1
        self._disarm()
        return LogReader(self.log, after, lost=lost, left=self._reader_left)

    def check_position(self, after: int) -> None:
        """Raise what `events(after)` would. A client may be ahead of a run that was resumed, by what its former server
        showed while its store was at fault."""
        ahead = self.is_resumed and not self.finished and after - self.log.last <= AHEAD
        check_position(self.log, min(after, self.log.last) if ahead else after)

    async def wait(self) -> Event:
        """The terminal event, once there is one. Does not count as a reader."""
        await self.done.wait()
        assert self.terminal is not None
        return self.terminal

    async def cancel(self, reason: StopReason = "cancelled") -> bool:
        """Stop: open items are closed and the stream ends with its terminal event. False if the run already ended."""
        stopped = self.stop(reason)
        if stopped:
            note("run.stopped", thread=self.thread_id, run=self.id)
        return stopped

    async def pause(self) -> bool:
        """Hold the tokens back; False if the run ended or its engine cannot pause."""
        return not self.finished and await self.controls.pause()

    async def resume(self) -> bool:
        return not self.finished and await self.controls.resume()

    async def modify(self, changes: dict[str, object]) -> bool:
        """Change sampling parameters from the next token on; RequestError("invalid_request") for unknown ones, and for
        more tokens than the run's key allows."""
        check_tokens(changes, self.options.most_tokens)
        return not self.finished and await self.controls.modify(changes)

    def stop(self, reason: StopReason) -> bool:
        """What `cancel` does, without waiting for anything. Asked for again, it insists: code of an agent's may have
        swallowed the first."""
        if self.state in ("ending", "finished") or self.task is None:
            return False
        now = time.monotonic()
        if self.stopped_by is None:
            self.stopped_by = reason
        elif now < self._insist_at:  # it is on its way out: let it clean up
            return True
        self._insist_at = now + INSIST_SECONDS
        if self.state != "created":  # a task cancelled before its first step would never run at all
            self.task.cancel()
        return True

    def await_reader(self) -> None:
        """Begin to count the time without readers, with an allowance for the first reader to arrive."""
        if self._grace is not None:
            self._arm(self._grace + FIRST_READER_SECONDS)

    def finish(self, terminal: Event) -> None:
        """Log the terminal event; nothing follows it."""
        self.terminal = terminal
        self.state = "finished"
        self._disarm()
        self.log.append(terminal)
        self.log.close()
        self.done.set()

    def leave(self, word: Event) -> None:
        """End here: another server goes on with the run. Readers are told so, without a number."""
        self.terminal = word
        self.state = "finished"
        self._disarm()
        self.log.close(word)
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
        with contextlib.suppress(RuntimeError):  # the loop is gone: a reader dropped at interpreter exit
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
    """RequestError("invalid_request") for a limit on tokens above `most`, or for taking it away; 0 allows all."""
    asked = changes.get("max_tokens", 0)
    if most and (not isinstance(asked, int) or asked > most):
        raise RequestError("invalid_request", f"This key may ask for {most} tokens at most.", "max_tokens")


def check_position(log: EventLog, after: int) -> None:
    """RequestError("invalid_request") for a number not given yet, "conflict" for one no longer kept."""
    if after < 0 or after > log.last:
        raise RequestError("invalid_request", "This run has not sent that event yet.", "after")
    if max(after, log.begins) + 1 < log.oldest:
        raise RequestError("conflict", "The events asked for are no longer kept; read the thread instead.", "after")


def lost(gap: FellBehind) -> Event:
    """What a reader is told that was too slow for the log's bounds."""
    return RunError(
        message=f"This reader fell behind and events {gap.wanted} to {gap.oldest - 1} are no longer kept. "
        "The run itself goes on; its thread can be read.",
        code="connection",
        metadata=as_metadata(ErrorMetadata(retryable=False, next_event=gap.oldest)),
    )


Observer = Callable[[Run], None]


LOOK_SECONDS = 1.0


class FinishedRuns:
    """Runs that ended, oldest first. forget: takes each one that is kept no longer, which is found when others are
    kept or asked for, and by a timer: a server without requests would hold its last runs for ever."""

    def __init__(self, limits: RunLimits, forget: Callable[[Run], None]) -> None:
        self._limits = limits
        self._forget = forget
        self._kept: deque[tuple[float, Run]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, run: Run) -> None:
        # All are kept equally long, so the oldest stands in front and expiry looks no further.
        self._kept.append((time.monotonic() + self._limits.replay_seconds, run))
        self._bytes += run.size
        if self._timer is None:
            self._set_timer()

    def forget_expired(self) -> None:
        now, limits = time.monotonic(), self._limits
        while self._kept and (
            self._kept[0][0] <= now or self._bytes > limits.replay_bytes or len(self._kept) > limits.replay_runs
        ):
            _, run = self._kept.popleft()
            self._bytes -= run.size
            self._forget(run)

    def _set_timer(self) -> None:
        """Look again when the oldest expires, at intervals at least: one timer serves for all that expire together."""
        self._timer = None
        if self._kept:
            delay = max(self._kept[0][0] - time.monotonic(), min(LOOK_SECONDS, self._limits.replay_seconds))
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self.forget_expired()
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def drop(self, run: Run) -> None:
        """Let go of a run whose id is used again. Nothing happens for one that is not kept."""
        kept = next((item for item in self._kept if item[1] is run), None)
        if kept is not None:
            self._kept.remove(kept)
            self._bytes -= run.size
