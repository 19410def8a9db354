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
"""Delay before the second attempt at a call; it doubles with each further attempt."""
LONGEST_RETRY_SECONDS = 5.0


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """An activity of a call, which clients show and the thread stores.

    kind: the activityType of ACTIVITY_SNAPSHOT. id: None for a new one; an existing one is replaced.
    """

    kind: str
    content: dict[str, object]
    id: str | None = None


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call: a result for the model (`failed`: it is an error), or a question to a person.

    structured: the result as the tool's output schema types it, for clients. activities: sent after the result.
    warnings: sent with the end of the run.
    """

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

    checks: it validates its arguments itself. early: a call may start before its message is complete. concurrency_key:
    under which concurrent calls are counted; "" if they are not, as for a subagent, whose own calls would wait for a
    slot that it holds. at_once: its own limit on concurrent calls. repeatable: repeating an interrupted call is
    harmless. retry_approval: the tool whose approval a person is asked for before an interrupted call is repeated;
    None: the model gets the result that the outcome is unknown.
    """

    checks: bool
    early: bool
    concurrency_key: str
    at_once: int | None
    repeatable: bool
    retry_approval: Tool | None

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        """Make the call. Raises nothing but CancelledError: failures are returned as results."""


class RetryableFailure(Exception):
    """A call failed, but another attempt may succeed."""


class FunctionCallee:
    """A `@tool` function within its limits. It validates its arguments itself and converts them where possible."""

    checks = True

    def __init__(self, tool: Tool, limits: ToolLimits) -> None:
        self._tool = tool
        self._seconds = tool.time_limit or limits.seconds
        self._characters = tool.result_limit or limits.characters
        self.early = tool.early
        self.concurrency_key = f"{tool.name} {id(tool)}"  # two agents may have different tools of one name
        self.at_once = tool.at_once
        self.repeatable = tool.idempotent or tool.early
        self.retry_approval = tool if tool.interrupted == "ask" else None

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        retries, last_failure = self._tool.retries, ""
        for number in range(retries + 1):
            if number:
                context.progress(f"{last_failure} Attempt {number + 1} of {retries + 1}.")
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
                    raise self._log_failure(error, attempt) from error
                except Exception as error:
                    raise self._log_failure(error, attempt) from error
            except RetryableFailure as retryable:
                last_failure = str(retryable)
            finally:
                attempt.cancel()
        return failure(last_failure)

    def _log_failure(self, error: Exception, context: ToolContext) -> RetryableFailure:
        """Log where a tool failed, and return a failure that does not say why.

        An exception's message (paths, queries, a user's text) belongs neither in a result, which the end user may see,
        nor in the log, which must not contain conversations.
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
    """Run the call in a new daemon thread and return its result. A thread that never ends then blocks neither a shared
    pool nor the exit of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

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
            result = context.run(call)
        except StopIteration as stop:  # a future rejects StopIteration
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the run
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="tool", daemon=True).start()
    return await future


def capped_message(message: str, limit: int = 2000) -> str:
    return message if len(message) <= limit else message[:limit] + "..."


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call to be answered now.

    context: for the callee. known_result: the result, if no call is made. interrupt_id: of the interrupt whose answer
    allowed the call. message_id: of its result.
    """

    call_id: str
    name: str
    arguments: dict[str, object]
    callee: Callee | None
    context: ToolContext
    known_result: CallResult | None = None
    interrupt_id: str | None = None
    message_id: str | None = None


OnResult = Callable[[PendingCall, CallResult], Awaitable[None]]


async def answer_all(
    pending: Sequence[PendingCall],
    answer: Callable[[PendingCall], Awaitable[CallResult]],
    on_end: OnResult,
    on_result: OnResult,
) -> None:
    """Answer calls concurrently. Cancelling this cancels all of them.

    on_end: called with each result as soon as its call ends. on_result: called with each result in the calls' order.
    """

    async def run_call(each: PendingCall) -> CallResult:
        result = await answer(each)
        await on_end(each, result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_call(each), name=f"tool {each.name}") for each in pending]
        for each, task in zip(pending, tasks, strict=True):
            await on_result(each, await task)


Key = tuple[str, ...]


class _Waiter(msgspec.Struct, eq=False):
    keys: dict[Key, int]
    granted: asyncio.Future[None]


class ToolConcurrency:
    """Limits how many tool calls run at once in one server."""

    def __init__(self, limits: ToolLimits) -> None:
        self._limits = limits
        self._in_use: Counter[Key] = Counter()
        self._waiting: list[_Waiter] = []

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a slot."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def slot(self, *, tenant: str, run: str, tool: str, at_once: int | None = None) -> AsyncIterator[None]:
        """Hold a slot for one call. at_once: the tool's own limit."""
        limits = self._limits
        bounds: dict[Key, int] = {
            ("run", tenant, run): limits.per_run,
            ("tool", tool): limits.per_tool if at_once is None else at_once,
            ("tenant", tenant): limits.per_tenant,
        }
        keys = {key: bound for key, bound in bounds.items() if bound}
        if self._has_room(keys):  # a released slot goes to waiters at once, so none of them could use these
            self._in_use.update(keys.keys())
        else:
            waiter = _Waiter(keys, asyncio.get_running_loop().create_future())
            self._waiting.append(waiter)
            try:
                await waiter.granted
            except asyncio.CancelledError:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not waiter.granted.cancelled():  # granted at the moment of cancellation
                    self._release(keys)
                raise
        try:
            yield
        finally:
            self._release(keys)

    def _has_room(self, keys: dict[Key, int]) -> bool:
        return all(self._in_use[key] < limit for key, limit in keys.items())

    def _release(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._in_use[key] -= 1
            if not self._in_use[key]:
                del self._in_use[key]
        still_waiting: list[_Waiter] = []
        for waiter in self._waiting:
            if waiter.granted.cancelled():  # its task has not run since
                continue
            if self._has_room(waiter.keys):
                self._in_use.update(waiter.keys.keys())
                waiter.granted.set_result(None)
            else:
                still_waiting.append(waiter)
        self._waiting = still_waiting
