"""Reads the next prompt ahead: while tools run, or a person is asked, the engine computes what is known of it.

The next prompt is known up to the result of the first call that is not answered. What the template makes of that is
found by rendering the conversation with two different results there: what both prompts begin with does not depend on
the result. The engine computes it and keeps it for the turn; where it is not what the prompt begins with in the end,
nothing is lost but the computing.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolMessage

from agent_server.agents.conversation import Conversation
from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.built_prompt import Prompt
from events.options import GenerationOptions

log = logging.getLogger("agent_server.agent")
Asked = tuple[RunAgentInput, GenerationOptions, str | None]
RESULTS = ("a", "Z")
"""Two results that begin with different characters."""
LEAST = 64
"""Tokens below which nothing is read ahead."""
_lasting: set[asyncio.Task[None]] = set()


class ReadAhead:
    """Around the calls of one turn. `with` begins to read ahead, each result goes on with it, and the end of the block
    ends it; `lasts` says that it is to go on to what is known by then, because the turn comes in a later run.

    asked: the next turn, as it stands. build: the prompt for a turn. compute: has the engine compute and keep the
    beginning of a prompt; None where the engine does not.
    """

    def __init__(
        self,
        conversation: Conversation,
        asked: Callable[[], Asked],
        build: Callable[[RunAgentInput, GenerationOptions, str | None], Awaitable[Prompt]],
        compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]] | None,
    ) -> None:
        self.lasts = False
        self._conversation = conversation
        self._asked = asked
        self._build = build
        self._compute = compute
        self._changed = asyncio.Event()
        self._over = False
        self._done: tuple[int, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> ReadAhead:
        if self._compute is not None:
            self._conversation.on_result = self._changed.set
            self._task = asyncio.create_task(self._read(self._compute), name="read ahead")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._conversation.on_result = None
        self._over = True
        self._changed.set()
        if self._task is None:
            return
        _lasting.add(self._task)
        self._task.add_done_callback(_lasting.discard)
        if kind is not None or not self.lasts:
            self._task.cancel()

    async def _read(self, compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]]) -> None:
        """Read as far as can be, again with every result, until all calls are answered. Never raises: without it, the
        turn takes longer."""
        try:
            while await self._read_once(compute):
                await self._changed.wait()
        except EngineError as error:
            log.debug("the next prompt was not read ahead: %s", error.message)
        except Exception:  # an agent's own instructions or a template may raise anything; the turn itself tells of it
            log.warning("the next prompt could not be read ahead", exc_info=True)

    async def _read_once(self, compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]]) -> bool:
        """Read what is known now; whether more may come to be known."""
        self._changed.clear()
        input, options, instructions = self._asked()
        known = known_so_far(input.messages)
        if known is None:
            return False
        messages, call_id = known
        input = input.model_copy(update={"messages": messages})
        beginning = await self._beginning(input, call_id, options, instructions)
        if len(beginning) >= LEAST and beginning != self._done:
            await compute(beginning, options)
            self._done = beginning
        return not self._over or self._changed.is_set()

    async def _beginning(
        self, input: RunAgentInput, call_id: str, options: GenerationOptions, instructions: str | None
    ) -> tuple[int, ...]:
        """The tokens that the prompt begins with, whatever the call's result is."""
        prompts: list[Prompt] = []
        for result in RESULTS:
            answered = ToolMessage(id=result, tool_call_id=call_id, content=result)
            made = input.model_copy(update={"messages": [*input.messages, answered]})
            prompts.append(await self._build(made, options, instructions))
        one, other = prompts
        return () if one.media else common_beginning(one.token_ids, other.token_ids)


def known_so_far(messages: Sequence[Message]) -> tuple[Sequence[Message], str] | None:
    """The messages up to the result of the first call of the last message that is not answered, and that call's id;
    None if all are answered."""
    place = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), None)
    if place is None:
        return None
    message = messages[place]
    calls = message.tool_calls or () if isinstance(message, AssistantMessage) else ()
    results = {each.tool_call_id: each for each in messages[place + 1 :] if isinstance(each, ToolMessage)}
    known = list(messages[: place + 1])
    for call in calls:
        if call.id not in results:
            return known, call.id
        known.append(results[call.id])
    return None


def common_beginning(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    lengths = range(1, min(len(one), len(other)) + 1)
    return one[: bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])]
