"""A run as its agent sees it: its input (`RunContext`) and, within it, where its events and notes go (`Recorder`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
from ag_ui.core import RunAgentInput

from adapters.answer import PromptNote
from adapters.body import notes_of_request
from agent_server.engine_protocol.protocol import Finished, Token
from agent_server.runs.controls import Controls
from agent_server.runs.journal import Journal, SavedRun
from agent_server.runs.run import StopReason
from agent_server.runs.store import InterruptRecord, RunRecord, Store, ThreadState
from agent_server.runs.store.records import InterruptAnswer, PendingQuestion
from agent_server.user import NOBODY, User
from events.lifecycle import Verifier
from events.metadata import Alternative, FinishedMetadata, RunTimings, Scored, as_metadata
from events.options import GenerationOptions
from events.vocabulary import Event, RunOutcome, SuccessOutcome, TokenUsage


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an agent that did not fail. `reason` goes into RUN_FINISHED's metadata."""

    outcome: RunOutcome = SuccessOutcome()
    result: object = None
    reason: str = "stop"


class OpenThread:
    """A stored thread as it was when the run began (`snapshot`), and what the run may do with it before it ends."""

    def __init__(self, store: Store, tenant: str, thread_id: str, run_id: str, snapshot: ThreadState) -> None:
        self.snapshot = snapshot
        self._store = store
        self._key = tenant, thread_id
        self._run_id = run_id

    @property
    def interrupts(self) -> tuple[InterruptRecord, ...]:
        return self.snapshot.interrupts

    async def messages(self) -> list[dict[str, Any]]:
        """Return all stored messages of the conversation, in wire form."""
        return await self._store.messages(*self._key)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._store.run(*self._key, run_id)

    async def claim(self, answers: Mapping[str, InterruptAnswer]) -> bool:
        """Accept answers to open interrupts for this run, all or none; see `Store.claim`."""
        return await self._store.claim(*self._key, answers, self._run_id)

    async def record_result(self, interrupt_id: str, content: object, message_id: str | None) -> None:
        await self._store.record_result(*self._key, interrupt_id, content, message_id, self._run_id)


class Recorder:
    """Checks and emits a run's events, and collects usage, timings and warnings for its end.

    The agent sets what is saved at the run's end, however it ends: `messages` returns the current conversation in wire
    form, `state` is the shared state, `interrupts` are the questions to a person. `unsent`: tokens that no delta
    carried. `turns`: the number of model turns so far. `journal`: saves the events before readers get them.
    """

    def __init__(self, journal: Journal, state: object, note_prompt: Callable[[PromptNote], None]) -> None:
        self.messages: Callable[[], Iterable[dict[str, object] | None]] = list
        self.state = state
        self.interrupts: list[PendingQuestion] = []
        self.constrained = False
        self.turns = 0
        self.usage: dict[str, TokenUsage] = {}
        self.warnings: list[str] = []
        self.unsent: Sequence[Scored] = ()
        self.journal = journal
        self._note_prompt = note_prompt
        self._arrived = time.monotonic()
        self._verifier = Verifier(strict=True)
        self._queued: float | None = None
        self._first_token: float | None = None
        self._stop: str | int | None = None
        self._resumed = 0
        self._generations = self._context = 0
        self._prompt: tuple[list[int], list[Scored | None] | None] | None = None

    def emit(self, event: Event) -> None:
        """Number an event and pass it to readers. Raises LifecycleError, before any reader sees it, if it is not
        allowed."""
        journal = self.journal
        # The verifier has already checked events that readers have.
        if (journal.muted or journal.replayed is not None) and journal.was_shown(event):
            return
        # Before the event gets a number: readers may receive every event that has one.
        self._verifier.check(event)
        journal.emit(event)

    def emit_reproducible(self, event: Event) -> None:
        """Emit an event that a server which resumes the run would produce identically, so it need not be saved
        first."""
        self._verifier.check(event)
        self.journal.emit(event, certain=True)

    def restore(self, events: Iterable[Event]) -> None:
        """Bring the verifier to the state after the events that an earlier server has sent."""
        for event in events:
            self._verifier.check(event)

    def is_open(self, step: str) -> bool:
        """Return whether a step of that name has started and not finished."""
        return self._verifier.is_open("step", step)

    def close_open(self) -> None:
        """Emit the end of everything that was started and not ended, innermost first."""
        for event in self._verifier.close_open():
            self.emit(event)

    def check(self, terminal: Event) -> None:
        """Raise LifecycleError if the run may not end with this event."""
        self._verifier.check(terminal)

    def warn(self, message: str) -> None:
        # Each turn of a run may repeat a warning.
        if message not in self.warnings:
            self.warnings.append(message)
            notes_of_request().warn(message)  # for the headers of an answer that has not begun

    def count(self, model: str, finished: Finished, reasoning_tokens: int = 0) -> None:
        """Add one generation's usage and timings to the run's. Queue times are summed."""
        used, before = finished.usage, self.usage.get(model) or TokenUsage(model=model)
        self.usage[model] = TokenUsage(
            model=model,
            input_tokens=used.prompt_tokens + (before.input_tokens or 0),
            output_tokens=used.completion_tokens + (before.output_tokens or 0),
            total_tokens=used.prompt_tokens + used.completion_tokens + (before.total_tokens or 0),
            reasoning_tokens=(reasoning_tokens + (before.reasoning_tokens or 0)) or None,
            cached_input_tokens=(used.cached_tokens + (before.cached_input_tokens or 0)) or None,
        )
        self._queued = (self._queued or 0.0) + finished.timings.queued
        self._stop = finished.stop
        self._generations += 1
        self._context = used.prompt_tokens + used.completion_tokens
        self._resumed += finished.resumed

    def note_prompt(self, token_ids: Sequence[int], *, with_ids: bool) -> None:
        """Record the run's first prompt for wires that report it before the answer begins, with its ids if wanted."""
        self._note_prompt(PromptNote(tokens=len(token_ids), ids=tuple(token_ids) if with_ids else None))

    def describe_prompt(self, token_ids: Sequence[int], finished: Finished) -> None:
        """Record the first prompt's ids and, if the engine returned them, its log probabilities, for requests that want
        them."""
        # A run of several turns has several prompts; the request is about the one that the client wrote.
        if self._prompt is None:
            scores = finished.prompt_logprobs
            rows = None if scores is None else [None if token is None else token_row(token) for token in scores]
            self._prompt = list(token_ids), rows

    def first_token(self) -> None:
        """Record the time of the run's first token; later calls have no effect."""
        if self._first_token is None:
            self._first_token = time.monotonic() - self._arrived

    def metadata(self, reason: str) -> dict[str, Any]:
        """Return RUN_FINISHED's metadata; see `FinishedMetadata`."""
        timings = RunTimings(
            queued=_rounded(self._queued),
            first_token=_rounded(self._first_token),
            total=_rounded(time.monotonic() - self._arrived),
        )
        prompt_token_ids, prompt_logprobs = self._prompt or (None, None)
        return as_metadata(
            FinishedMetadata(
                finish_reason=reason,
                timings=timings,
                warnings=list(self.warnings) or None,
                stop=self._stop,
                prompt_token_ids=prompt_token_ids,
                prompt_logprobs=prompt_logprobs,
                tokens=list(self.unsent) or None,
                constrained=self.constrained or None,
                resumed=self._resumed or None,
                context=self._context if self._generations > 1 else None,
            )
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def token_row(token: Token) -> Scored:
    """Convert a token to the form in event metadata."""
    others: list[Alternative] = [(other.id, other.text, other.logprob) for other in token.alternatives or ()]
    return (token.id, token.text, token.logprob, others)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What is fixed for a run: its input, and what the agent may use.

    recorder: where its events and notes go. thread: None if nothing is stored. checkpoint, saved: of a resumed run, the
    agent's checkpoint and the events from the server that ended; None for a new run. user: who requested the run; of a
    resumed run only the name is known. stopped_by: why the run is being stopped; None while it is not.
    """

    input: RunAgentInput
    options: GenerationOptions
    tenant: str
    recorder: Recorder
    controls: Controls
    new_id: Callable[[str], str]
    thread: OpenThread | None = None
    checkpoint: str | None = None
    saved: SavedRun | None = None
    user: User = NOBODY
    stopped_by: Callable[[], StopReason | None] = lambda: None


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to restart a run from a checkpoint.

    has_begun: the agent had begun its work and continues from its checkpoint. whole: see `Run`. request_digest: set for
    a run that has ended; see `resumption.request_digest`. user: the name of the user who requested the run.
    """

    input: RunAgentInput
    options: GenerationOptions
    has_begun: bool
    whole: bool
    request_digest: str = ""
    user: str = ""


@runtime_checkable
class Resumes(Protocol):
    """An agent that can continue a run from a checkpoint."""

    def checkpoint(self, input: RunAgentInput, options: GenerationOptions, *, whole: bool, user: str) -> str:
        """Return the checkpoint of a run that has not begun. user: the name of the user who requested it."""

    def ended_checkpoint(self, input: RunAgentInput, options: GenerationOptions) -> str:
        """Return the reduced checkpoint of a finished run: enough to replay its events."""

    def resumption(self, checkpoint: str) -> Resumption:
        """Decode a checkpoint. Raises ValueError if it cannot be read."""


class Runnable(Protocol):
    """The interface of an agent to the run manager."""

    @property
    def name(self) -> str: ...

    async def run(self, context: RunContext) -> Ending:
        """Emit events to the context's recorder until done. Raise EngineError or RequestError on failure. The run's
        driver emits RUN_STARTED and the terminal event."""

    async def close(self) -> None:
        """Release resources. Called after the last run has ended, possibly more than once."""
