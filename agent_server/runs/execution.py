"""What an agent is given to work with during one run, and what it hands back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from ag_ui.core import RunAgentInput

from adapters.answer import PromptNote
from agent_server.engine.protocol import Finished, Token
from agent_server.runs.controls import Controls
from agent_server.runs.run import Run
from events.lifecycle import Verifier
from events.options import GenerationOptions
from events.vocabulary import Event, RunOutcome, SuccessOutcome, TokenUsage

if TYPE_CHECKING:
    from agent_server.store import Store, ThreadState


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's work ended when it did not fail. `reason` goes into RUN_FINISHED.metadata.finishReason."""

    outcome: RunOutcome = SuccessOutcome()
    result: Any = None
    reason: str = "stop"


class Execution:
    """One run from the agent's side: where its events go, and what is recorded about it on the way.

    messages: gives the conversation in wire form as it stands, to be saved. state: the shared state, to be saved.
    open_interrupts: what the run leaves for a person to answer, saved with it.
    """

    def __init__(self, run: Run, store: Store | None, new_id: Callable[[str], str]) -> None:
        self.run = run
        self.store = store
        self.new_id = new_id
        self.arrived = time.monotonic()
        self.thread: ThreadState | None = None
        self.usage: dict[str, TokenUsage] = {}
        self.warnings: list[str] = []
        self.messages: Callable[[], list[dict[str, Any]]] = list
        self.state: Any = run.input.state
        self.interrupts: list[dict[str, Any]] = []
        self.timings: dict[str, float] = {}
        self.stop: str | int | None = None
        self.resumed = 0
        self.constrained = False
        self.prompt_details: dict[str, Any] = {}
        self.unsent: Sequence[Any] = ()
        self._verifier = Verifier(strict=True)

    @property
    def input(self) -> RunAgentInput:
        return self.run.input

    @property
    def options(self) -> GenerationOptions:
        return self.run.options

    @property
    def tenant(self) -> str:
        return self.run.tenant

    @property
    def controls(self) -> Controls:
        return self.run.controls

    def emit(self, event: Event) -> None:
        """Number an event and hand it to the readers; LifecycleError, before anyone sees it, if it may not come."""
        self._verifier.check(event)
        self.run.log.append(event)

    def close_open(self) -> None:
        """End everything that was started and not ended, innermost first."""
        for event in self._verifier.close_open():
            self.emit(event)

    def conclude(self, terminal: Event) -> None:
        """The terminal event, checked like every other."""
        self._verifier.check(terminal)
        self.run.finish(terminal)

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def count(self, model: str, finished: Finished, reasoning_tokens: int = 0) -> None:
        """Add one generation's usage and timings to the run's. Queue times add up; the first token is the run's."""
        used, before = finished.usage, self.usage.get(model)
        self.usage[model] = TokenUsage(
            model=model,
            input_tokens=used.prompt_tokens + _of(before, "input_tokens"),
            output_tokens=used.completion_tokens + _of(before, "output_tokens"),
            total_tokens=used.prompt_tokens + used.completion_tokens + _of(before, "total_tokens"),
            reasoning_tokens=(reasoning_tokens + _of(before, "reasoning_tokens")) or None,
            cached_input_tokens=(used.cached_tokens + _of(before, "cached_input_tokens")) or None,
        )
        self.timings["queued"] = self.timings.get("queued", 0.0) + finished.timings.queued
        self.stop = finished.stop
        self.resumed += finished.resumed

    def prompted(self, token_ids: Sequence[int]) -> None:
        """Note the run's first prompt for wires that tell of it before the answer begins."""
        if self.run.prompt is None:
            ids = tuple(token_ids) if self.options.token_details else None
            self.run.prompt = PromptNote(tokens=len(token_ids), ids=ids)

    def describe_prompt(self, token_ids: Sequence[int], finished: Finished) -> None:
        """Keep the first prompt's ids, and its log probabilities where the engine gave any, for who asked for them."""
        if self.prompt_details:
            return
        self.prompt_details["promptTokenIds"] = list(token_ids)
        if finished.prompt_logprobs is not None:
            self.prompt_details["promptLogprobs"] = [token and token_row(token) for token in finished.prompt_logprobs]

    def first_token(self) -> None:
        """Note when the run's first token came; later calls change nothing."""
        if "firstToken" not in self.timings:
            self.timings["firstToken"] = time.monotonic() - self.arrived

    def metadata(self, reason: str) -> dict[str, Any]:
        """What RUN_FINISHED carries beside the protocol's own fields; absent values are left out."""
        timings = {name: round(value, 6) for name, value in self.timings.items()}
        timings["total"] = round(time.monotonic() - self.arrived, 6)
        found: dict[str, Any] = {"finishReason": reason, "timings": timings, **self.prompt_details}
        if self.warnings:
            found["warnings"] = list(self.warnings)
        if self.stop is not None:
            found["stop"] = self.stop
        if self.constrained:
            found["constrained"] = True
        if self.unsent:
            found["tokens"] = list(self.unsent)
        if self.resumed:
            found["resumed"] = self.resumed
        return found


def _of(usage: TokenUsage | None, name: str) -> int:
    return (getattr(usage, name) or 0) if usage is not None else 0


def token_row(token: Token) -> list[Any]:
    """A token as event metadata has it: [id, text, logprob, [[id, text, logprob], ...]]."""
    others = [[other.id, other.text, other.logprob] for other in token.alternatives or ()]
    return [token.id, token.text, token.logprob, others]


class Runnable(Protocol):
    """An agent as the run manager knows it."""

    @property
    def name(self) -> str: ...

    async def run(self, execution: Execution) -> Ending:
        """Emit events until done; raise EngineError or RequestError when it fails. Terminal events are not its own."""

    async def close(self) -> None:
        """Let go of what it holds for its runs. Called once no run is left, perhaps more than once."""
