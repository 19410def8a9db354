"""One run from its agent's side: what it was asked (`RunContext`), and what is recorded of it (`Recorder`)."""

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
from agent_server.runs.store.records import AskedPerson, InterruptAnswer
from agent_server.user import NOBODY, User
from events.lifecycle import Verifier
from events.metadata import Alternative, FinishedMetadata, RunTimings, Scored, as_metadata
from events.options import GenerationOptions
from events.vocabulary import Event, RunOutcome, SuccessOutcome, TokenUsage


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's work ended when it did not fail. `reason` goes into RUN_FINISHED's metadata."""

    outcome: RunOutcome = SuccessOutcome()
    result: object = None
    reason: str = "stop"


class OpenThread:
    """A stored thread as a run found it, and what the run may do with it before its end."""

    def __init__(self, store: Store, tenant: str, thread_id: str, run_id: str, found: ThreadState) -> None:
        self.found = found
        self._store = store
        self._key = tenant, thread_id
        self._run_id = run_id

    @property
    def interrupts(self) -> tuple[InterruptRecord, ...]:
        return self.found.interrupts

    async def messages(self) -> list[dict[str, Any]]:
        """Everything that is stored of the conversation, in wire form."""
        return await self._store.messages(*self._key)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._store.run(*self._key, run_id)

    async def claim(self, answers: Mapping[str, InterruptAnswer]) -> bool:
        """Accept answers to open interrupts for this run, all or none; see `Store.claim`."""
        return await self._store.claim(*self._key, answers, self._run_id)

    async def record_result(self, interrupt_id: str, content: object, message_id: str | None) -> None:
        await self._store.record_result(*self._key, interrupt_id, content, message_id, self._run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a run was asked, and what it has to work with. thread: None where nothing of it is stored. kept: the agent's
    checkpoint of it, from a server that ended since, with the events of then; None for a run that begins. user: who
    asked for it; of a resumed run the name alone is known. stopped_by: why the run is being stopped, None as long as it
    is not."""

    input: RunAgentInput
    options: GenerationOptions
    tenant: str
    controls: Controls
    new_id: Callable[[str], str]
    thread: OpenThread | None = None
    kept: str | None = None
    saved: SavedRun | None = None
    user: User = NOBODY
    stopped_by: Callable[[], StopReason | None] = lambda: None


class Recorder:
    """Where a run's events go, and what is counted and noted on the way.

    What the run leaves to be saved, however it ends, is set by its agent: `messages` gives the conversation in wire
    form as it stands, `state` is the shared state, `interrupts` are the questions to a person. `unsent`: tokens that no
    delta carried. `turns`: how many turns of a model the run has taken. `journal`: what the events pass on their way to
    the readers.
    """

    def __init__(self, journal: Journal, state: object, note_prompt: Callable[[PromptNote], None]) -> None:
        self.messages: Callable[[], Iterable[dict[str, object] | None]] = list
        self.state = state
        self.interrupts: list[AskedPerson] = []
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
        """Number an event and hand it to the readers; LifecycleError, before anyone sees it, if it may not come."""
        journal = self.journal
        # Of what readers have, the verifier knows already.
        if (journal.muted or journal.replayed is not None) and journal.was_shown(event):
            return
        # Before it has a number: readers may be sent whatever has one.
        self._verifier.check(event)
        journal.emit(event)

    def begin_certainly(self, event: Event) -> None:
        """As `emit`, for an event that a server which resumes the run would make the same."""
        self._verifier.check(event)
        self.journal.emit(event, certain=True)

    def restore(self, events: Iterable[Event]) -> None:
        """Know of events that an earlier server has sent."""
        for event in events:
            self._verifier.check(event)

    def is_open(self, step: str) -> bool:
        """Whether a step of that name has begun and not ended."""
        return self._verifier.is_open("step", step)

    def close_open(self) -> None:
        """End everything that was started and not ended, innermost first."""
        for event in self._verifier.close_open():
            self.emit(event)

    def check(self, terminal: Event) -> None:
        """LifecycleError if the run may not end with this event."""
        self._verifier.check(terminal)

    def warn(self, message: str) -> None:
        # Each turn of a run may find the same again.
        if message not in self.warnings:
            self.warnings.append(message)
            notes_of_request().warn(message)  # for the headers of an answer that has not begun

    def count(self, model: str, finished: Finished, reasoning_tokens: int = 0) -> None:
        """Add one generation's usage and timings to the run's. Queue times add up; the first token is the run's."""
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

    def prompted(self, token_ids: Sequence[int], *, told: bool) -> None:
        """Note the run's first prompt for wires that tell of it before the answer begins; `told`: with its ids."""
        self._note_prompt(PromptNote(tokens=len(token_ids), ids=tuple(token_ids) if told else None))

    def describe_prompt(self, token_ids: Sequence[int], finished: Finished) -> None:
        """Keep the first prompt's ids, and its log probabilities where the engine gave any, for requests that asked for
        them."""
        # A run of several turns has several prompts; what the request asked about is the one it wrote.
        if self._prompt is None:
            scores = finished.prompt_logprobs
            rows = None if scores is None else [None if token is None else token_row(token) for token in scores]
            self._prompt = list(token_ids), rows

    def first_token(self) -> None:
        """Note when the run's first token came; later calls change nothing."""
        if self._first_token is None:
            self._first_token = time.monotonic() - self._arrived

    def metadata(self, reason: str) -> dict[str, Any]:
        """What RUN_FINISHED carries beside the protocol's own fields; see `FinishedMetadata`."""
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
    """A token as event metadata has it."""
    others: list[Alternative] = [(other.id, other.text, other.logprob) for other in token.alternatives or ()]
    return (token.id, token.text, token.logprob, others)


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is begun with again. begun: the agent had begun its work, and goes on from its checkpoint. whole: as
    `Run`'s. asked: of a run that ended, the digest of what it was asked. user: the name of who asked for it."""

    input: RunAgentInput
    options: GenerationOptions
    begun: bool
    whole: bool
    asked: str = ""
    user: str = ""


@runtime_checkable
class Resumes(Protocol):
    """An agent that can go on with a run from a checkpoint."""

    def checkpoint(self, input: RunAgentInput, options: GenerationOptions, *, whole: bool, user: str) -> str:
        """The checkpoint of a run that has not begun. user: the name of who asked for it."""

    def ended_checkpoint(self, input: RunAgentInput, options: GenerationOptions) -> str:
        """What is left of the checkpoint of a run that ended: enough to tell its events again."""

    def resumption(self, checkpoint: str) -> Resumption:
        """What such a run is begun with. Raises ValueError for what it cannot read."""


class Runnable(Protocol):
    """An agent as the run manager knows it."""

    @property
    def name(self) -> str: ...

    async def run(self, context: RunContext, recorder: Recorder) -> Ending:
        """Emit events until done; raise EngineError or RequestError when it fails. The manager emits RUN_STARTED and
        the terminal event."""

    async def close(self) -> None:
        """Let go of what it holds for its runs. Called once no run is left, perhaps more than once."""
