"""This server's model for a guest in this process: generations inside of the guest's run.

They are no runs of their own, so they wait for no place among the runs; they count for the run's tenant, are paused
and stopped with it, and what they use is in its usage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import msgspec
from ag_ui.core import Message, RunAgentInput, Tool

from agent_server.agents.guardrails import GuardedStream, Guards
from agent_server.agents.turn import Turn, TurnTaker
from agent_server.engine_protocol.protocol import EngineError
from events.options import GenerationOptions, ResponseFormat, SamplingParams, ToolChoice
from events.vocabulary import Event, RunFinished, SuccessOutcome, TokenUsage

if TYPE_CHECKING:
    from agent_server.agents.turn import LanguageModel
    from agent_server.runs import Recorder, RunContext

CURRENT: ContextVar[OwnEngine | None] = ContextVar("own_engine", default=None)
OUTSIDE = (
    "This model answers inside of a run of this server, and there is none here. Serve the agent with "
    "`agent-server serve --agent`, or use the server's address with the framework's own OpenAI client."
)


class CutShort(EngineError):
    """The model's output ended within a call. Raised into the guest's framework in place of the turn: some complete
    the arguments of such a call, and would make it."""

    def __init__(self) -> None:
        message = "The model's answer ended within a tool call, which is not made. Allow a longer answer (max_tokens)."
        super().__init__("internal", message)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a framework asks of the model. Sampling parameters that it does not state are those of the client's
    request."""

    messages: list[Message]
    tools: list[Tool] = []
    sampling: dict[str, object] = {}
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat | None = None
    thinking: bool | None = None


class OwnEngine:
    """The model as one run's guest uses it. `current()` finds it from anywhere in that run, its threads included.

    cut_short: the reason of the last turn, if it ended within a call ("length" for one at its limit).
    """

    def __init__(
        self, model: LanguageModel, context: RunContext, recorder: Recorder, guards: Guards | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._model = model
        self._context = context
        self._recorder = recorder
        self._guards = guards
        self._tasks: set[asyncio.Task[Turn]] = set()
        self._closed = False
        self.cut_short: str | None = None
        self._next: OwnEngine | None = None

    @property
    def name(self) -> str:
        return self._model.name

    def enter(self) -> None:
        """Make this the current one of the run's task and of those that it starts."""
        CURRENT.set(self)

    def continued_by(self, later: OwnEngine | None) -> None:
        """From now on, code of this run generates as part of a later one: it waited for a person in between."""
        self._next = later

    def now(self) -> OwnEngine:
        """The run's own, or the one that continues it."""
        return self if self._next is None else self._next.now()

    async def close(self) -> None:
        """End what the guest left running. Nothing can be generated afterwards."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def new_id(self, prefix: str) -> str:
        return self._context.new_id(prefix)

    async def generate(self, request: Request) -> AsyncGenerator[Event | Turn, None]:
        """The events of one turn of the model, and the whole turn last. Closing it ends the generation. Raises
        EngineError, CutShort among them, or RequestError."""
        given = self._context.input
        input = RunAgentInput(
            thread_id=given.thread_id, run_id=given.run_id, messages=request.messages, tools=request.tools
        )
        async for item in self.answer(input, self._options(request)):
            yield item

    async def answer(self, input: RunAgentInput, options: GenerationOptions) -> AsyncGenerator[Event | Turn, None]:
        """`generate` for an input that is there already."""
        if self._closed:
            raise RuntimeError("The run that this model belongs to has ended.")
        arrived: asyncio.Queue[Event | None] = asyncio.Queue()
        guarded = None if self._guards is None else GuardedStream(self._guards)
        turns = TurnTaker(self._model, self._context, self._recorder, arrived.put_nowait, guarded=guarded)
        task = asyncio.create_task(turns.take(input, options), name="generation for a guest")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (event := await arrived.get()) is not None:
                yield event
            turn = await task
            self.cut_short = turn.finished.reason if turn.said.cut_calls else None
            if self.cut_short is not None:
                raise CutShort
            yield turn
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))

    def finished(self, input: RunAgentInput, turn: Turn) -> RunFinished:
        """The end of a turn, as wires that know runs alone have it."""
        reason = turn.finished.reason
        used, pending = turn.finished.usage, [call.id for call in turn.said.calls]
        usage = TokenUsage(
            model=self.name,
            input_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            total_tokens=used.prompt_tokens + used.completion_tokens,
        )
        return RunFinished(
            thread_id=input.thread_id,
            run_id=input.run_id,
            outcome=SuccessOutcome(pending_tool_call_ids=pending or None),
            usage=[usage],
            metadata={"finishReason": "tool_calls" if pending and reason == "stop" else reason},
        )

    def _options(self, request: Request) -> GenerationOptions:
        given = self._context.options
        sampling = msgspec.structs.replace(given.sampling, **request.sampling)
        return GenerationOptions(
            sampling=msgspec.convert(msgspec.structs.asdict(sampling), SamplingParams),
            stated=given.stated | frozenset(request.sampling),
            tool_choice=request.tool_choice,
            response_format=request.response_format,
            thinking=given.thinking if request.thinking is None else request.thinking,
            template_kwargs=given.template_kwargs,
            constrain_tools=given.constrain_tools,
        )


def current() -> OwnEngine:
    """The engine of the run that this code runs in. Raises RuntimeError outside of any."""
    engine = CURRENT.get()
    if engine is None:
        raise RuntimeError(OUTSIDE)
    return engine.now()
