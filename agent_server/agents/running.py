"""Run the tool calls of one turn concurrently, each within its limits, and report them in the order of the calls.

`ToolConcurrency` bounds how many calls run at once for a tenant, a run and a tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from agent_server.agents.server_tools import Tool, ToolFault, capped, result_content
from agent_server.agents.tool_context import InputRequired, ToolContext
from agent_server.settings import ToolLimits

logger = logging.getLogger("agent_server.agent")
RETRY_SECONDS = 0.2
"""Before the second attempt at a call; twice as long before each further one."""
LONGEST_RETRY_SECONDS = 5.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Something that clients show for a call, kept with the thread. kind: ACTIVITY_SNAPSHOT's activityType. id: None
    for a new one; one that is there already is replaced. told: it was sent before, and is only to be kept."""

    kind: str
    content: dict[str, object]
    id: str | None = None
    told: bool = False


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave: a result for the model (`failed`: an error told to it), or a question for a person.
    structured: the result as its tool's output schema types it, for clients. activities: told behind the result.
    warnings: told with the run's end."""

    content: str | list[Any] = ""
    structured: dict[str, Any] | None = None
    failed: bool = False
    question: InputRequired | None = None
    activities: tuple[Activity, ...] = ()
    warnings: tuple[str, ...] = ()


def failure(message: str) -> CallResult:
    return CallResult(content=f"Error: {message}", failed=True)


class Callee(Protocol):
    """Anything that answers a call: a server tool, a tool of an MCP server, another agent.

    checks: it checks its arguments itself. early: it may run before the message that calls it is done. place: the name
    under which its calls are counted, "" for those that take no place: an agent's, whose own calls take places, and
    would wait for it. at_once: its own bound on calls at once. repeats: a call that was interrupted may be made again,
    since making it twice does no harm. asks: the tool for which a person is asked whether to; None where the model is
    told.
    """

    checks: bool
    early: bool
    place: str
    at_once: int | None
    repeats: bool
    asks: Tool | None

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        """Never raises but for cancellation: what goes wrong is the answer."""


class RetryableFailure(Exception):
    """A call failed in a way that another attempt may not."""


class FunctionCallee:
    """A `@tool` function within its limits. It checks its arguments itself, and takes what can be converted."""

    checks = True

    def __init__(self, tool: Tool, limits: ToolLimits) -> None:
        self._tool = tool
        self._seconds = tool.time_limit or limits.seconds
        self._characters = tool.result_limit or limits.characters
        self.early = tool.early
        self.place = f"{tool.name} {id(tool)}"  # two agents may have different tools of one name
        self.at_once = tool.at_once
        self.repeats = tool.idempotent or tool.early
        self.asks = tool if tool.interrupted == "ask" else None

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        retries, last = self._tool.retries, ""
        for number in range(retries + 1):
            if number:
                context.progress(f"{last} Attempt {number + 1} of {retries + 1}.")
                await asyncio.sleep(min(RETRY_SECONDS * 2 ** (number - 1), LONGEST_RETRY_SECONDS))
            attempt = context.attempt()
            try:
                # One attempt.
                try:
                    async with asyncio.timeout(self._seconds) as deadline:
                        value = await self._call(arguments, attempt)
                        return CallResult(content=capped(result_content(value), self._characters))
                except InputRequired as question:
                    return CallResult(question=question)
                except ToolFault as fault:
                    return failure(capped_message(str(fault)))
                except TimeoutError as error:
                    if deadline.expired():
                        raise RetryableFailure(f"{self._tool.name} took longer than {self._seconds:g} s.") from error
                    raise self._failed(error, attempt) from error
                except Exception as error:
                    raise self._failed(error, attempt) from error
            except RetryableFailure as passing:
                last = str(passing)
            finally:
                attempt.cancel()
        return failure(last)

    def _failed(self, error: Exception, context: ToolContext) -> RetryableFailure:
        """Log where a tool failed, and return a failure that does not say why.

        What an exception says (paths, queries, what a user wrote) belongs neither in a result, which the end user may
        see, nor in the log, which has no content of conversations.
        """
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error(
            "the tool %s failed in the call %s with %s:\n%s",
            self._tool.name, context.tool_call_id, type(error).__name__, frames,
        )  # fmt: skip
        return RetryableFailure(f"{self._tool.name} failed.")

    async def _call(self, arguments: dict[str, object], context: ToolContext) -> object:
        keywords = self._tool.check(arguments)
        if self._tool.context_parameter is not None:
            keywords[self._tool.context_parameter] = context
        if self._tool.kind == "async":
            return await self._tool.call(**keywords)
        if self._tool.kind == "sync":
            value = await in_thread(functools.partial(self._tool.call, **keywords))
            return await value if inspect.isawaitable(value) else value
        async with contextlib.aclosing(self._tool.call(**keywords)) as items:
            # The last item of a generator; those before it are progress.
            last: object = None
            first = True
            async for item in items:
                if not first:
                    context.progress(last if isinstance(last, dict) else str(last))
                last, first = item, False
            return last


async def in_thread(call: Callable[[], object]) -> object:
    """The call's result from a thread of its own. The thread is a daemon: one that never ends holds up neither a pool
    that others need nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    surroundings = contextvars.copy_context()

    def settle(result: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: object = None
        error: BaseException | None = None
        try:
            result = surroundings.run(call)
        except StopIteration as stop:  # a future does not take it
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the run
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await future


def capped_message(message: str, limit: int = 2000) -> str:
    return message if len(message) <= limit else message[:limit] + "..."


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is to be answered now. context: its surroundings, for the callee. known: the answer, where no call is
    made. `interrupt_id`: of the interrupt whose answer allowed it. message_id: of its result."""

    call_id: str
    name: str
    arguments: dict[str, object]
    callee: Callee | None
    context: ToolContext
    known: CallResult | None = None
    interrupt_id: str | None = None
    message_id: str | None = None


Told = Callable[[Pending, CallResult], Awaitable[None]]


async def answer_all(
    pending: Sequence[Pending], answer: Callable[[Pending], Awaitable[CallResult]], ended: Told, tell: Told
) -> None:
    """Answer calls concurrently. `ended` is told of each as it ends, `tell` of each in the calls' order. Cancelling
    this cancels them all."""

    async def one(each: Pending) -> CallResult:
        result = await answer(each)
        await ended(each, result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(each), name=f"tool {each.name}") for each in pending]
        for each, task in zip(pending, tasks, strict=True):
            await tell(each, await task)


Key = tuple[str, ...]


class _Wanted(msgspec.Struct, eq=False):
    keys: dict[Key, int]
    granted: asyncio.Future[None]


class ToolConcurrency:
    """The places of one server's tool calls."""

    def __init__(self, limits: ToolLimits) -> None:
        self._limits = limits
        self._taken: Counter[Key] = Counter()
        self._waiting: list[_Wanted] = []

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def place(self, *, tenant: str, run: str, tool: str, at_once: int | None = None) -> AsyncIterator[None]:
        """Hold a place for one call. at_once: the tool's own bound."""
        limits = self._limits
        bounds: dict[Key, int] = {
            ("run", tenant, run): limits.per_run,
            ("tool", tool): limits.per_tool if at_once is None else at_once,
            ("tenant", tenant): limits.per_tenant,
        }
        keys = {key: bound for key, bound in bounds.items() if bound}
        await self._take(keys)
        try:
            yield
        finally:
            self._give_back(keys)

    async def _take(self, keys: dict[Key, int]) -> None:
        if self._has_room(keys):  # whoever waits has no room: a place that is given back goes to them at once
            self._taken.update(keys.keys())
            return
        wanted = _Wanted(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        try:
            await wanted.granted
        except asyncio.CancelledError:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
            elif not wanted.granted.cancelled():  # granted in the moment of the cancellation
                self._give_back(keys)
            raise

    def _has_room(self, keys: dict[Key, int]) -> bool:
        return all(self._taken[key] < limit for key, limit in keys.items())

    def _give_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
        left: list[_Wanted] = []
        for wanted in self._waiting:
            if wanted.granted.cancelled():  # and its task has not run since
                continue
            if self._has_room(wanted.keys):
                self._taken.update(wanted.keys.keys())
                wanted.granted.set_result(None)
            else:
                left.append(wanted)
        self._waiting = left
