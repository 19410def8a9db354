"""This server's model for a guest in this process: generations within the guest's run.

They are not runs of their own and need no admission. They count for the run's tenant, are paused and stopped with the
run, and are part of its usage.
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
from agent_server.agents.turn_output import TurnOutput
from agent_server.engine_protocol.protocol import EngineError
from events.options import GenerationOptions, ResponseFormat, SamplingParams, ToolChoice
from events.vocabulary import Event, RunFinished, SuccessOutcome, TokenUsage

if TYPE_CHECKING:
    from agent_server.agents.turn import LanguageModel
    from agent_server.runs import RunContext

CURRENT: ContextVar[OwnEngine | None] = ContextVar("own_engine", default=None)
OUTSIDE = (
    "This model works only within a run of this server. Serve the agent with `agent-server serve --agent`, or use the "
    "server's address with the framework's own OpenAI client."
)


class TruncatedCall(EngineError):
    """The model's output ended within a call. Raised into the guest's framework instead of returning the turn: some
    frameworks complete the arguments of such a call and would make it."""

    def __init__(self) -> None:
        message = "The model's answer ended within a tool call, which was not made. Allow a longer answer (max_tokens)."
        super().__init__("internal", message)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A framework's request to the model. Sampling parameters that it does not set come from the client's request."""

    messages: list[Message]
    tools: list[Tool] = []
    sampling: dict[str, object] = {}
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat | None = None
    thinking: bool | None = None


class OwnEngine:
    """The model for one run's guest. `current()` returns it anywhere in that run, including its threads.

    cut_short: the finish reason of the last turn, if it ended within a call ("length" for one at its limit).
    """

    def __init__(self, model: LanguageModel, context: RunContext, guards: Guards | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._model = model
        self._context = context
        self._guards = guards
        self._tasks: set[asyncio.Task[Turn]] = set()
        self._closed = False
        self.cut_short: str | None = None
        self._next: OwnEngine | None = None

    @property
    def name(self) -> str:
        return self._model.name

    def enter(self) -> None:
        """Make this the current engine of the run's task and of the tasks that it starts."""
        CURRENT.set(self)

    def continue_in(self, later: OwnEngine | None) -> None:
        """Let code of this run, which waited for a person, generate as part of a later run from now on."""
        self._next = later

    def current(self) -> OwnEngine:
        """This engine, or that of the run that continues this one."""
        return self if self._next is None else self._next.current()

    async def close(self) -> None:
        """Cancel generations that are still running. Nothing can be generated afterwards."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def new_id(self, prefix: str) -> str:
        return self._context.new_id(prefix)

    async def generate(self, request: Request) -> AsyncGenerator[Event | Turn, None]:
        """Yield the events of one turn of the model, then the complete turn. Closing it ends the generation. Raises
        EngineError (TruncatedCall is one) or RequestError."""
        source = self._context.input
        input = RunAgentInput(
            thread_id=source.thread_id, run_id=source.run_id, messages=request.messages, tools=request.tools
        )
        client_options = self._context.options
        sampling = msgspec.structs.replace(client_options.sampling, **request.sampling)
        options = GenerationOptions(
            sampling=msgspec.convert(msgspec.structs.asdict(sampling), SamplingParams),
            stated=client_options.stated | frozenset(request.sampling),
            tool_choice=request.tool_choice,
            response_format=request.response_format,
            thinking=client_options.thinking if request.thinking is None else request.thinking,
            template_kwargs=client_options.template_kwargs,
            constrain_tools=client_options.constrain_tools,
        )
        async for item in self.answer(input, options):
            yield item

    async def answer(self, input: RunAgentInput, options: GenerationOptions) -> AsyncGenerator[Event | Turn, None]:
        """As `generate`, for a complete input."""
        if self._closed:
            raise RuntimeError("The run that this model belongs to has ended.")
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        guarded = None if self._guards is None else GuardedStream(self._guards)
        turns = TurnTaker(self._model, self._context, TurnOutput(events.put_nowait, guarded=guarded))
        task = asyncio.create_task(turns.take(input, options), name="generation for a guest")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            turn = await task
            self.cut_short = turn.finished.reason if turn.output.cut_calls else None
            if self.cut_short is not None:
                raise TruncatedCall
            yield turn
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))

    def finished(self, input: RunAgentInput, turn: Turn) -> RunFinished:
        """The end of a turn as the end of a run, for wires that only know runs."""
        reason = turn.finished.reason
        used, pending = turn.finished.usage, [call.id for call in turn.output.calls]
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


def current() -> OwnEngine:
    """The engine of the current run. Raises RuntimeError outside of a run."""
    engine = CURRENT.get()
    if engine is None:
        raise RuntimeError(OUTSIDE)
    return engine.current()
