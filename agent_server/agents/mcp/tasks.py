"""MCP tasks: calls that a server answers with a handle, and whose result is fetched by it, also by another gateway.

Servers of the protocol 2026-07-28 decide themselves (the extension `io.modelcontextprotocol/tasks`, SEP-2663): the
handle comes in the place of a result, `tasks/get` tells the state and the result, `tasks/update` takes a person's
answers. Servers of 2025-11-25 are asked for a task where their tool supports it, and `tasks/result` waits for the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Literal

from mcp import MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequest,
    CancelTaskRequestParams,
    EmptyResult,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    GetTaskRequest,
    GetTaskRequestParams,
    GetTaskResult,
    InputRequests,
    InputRequiredResult,
    InputResponses,
    Request,
    RequestParams,
    Result,
    TaskMetadata,
    TextContent,
)
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from agent_server.agents.mcp.repairs import TASK

TASKS = "io.modelcontextprotocol/tasks"
TTL_MS = 24 * 3600 * 1000
"""How long servers of 2025-11-25 are asked to keep a task."""
POLL_SECONDS, LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 1.0, 0.1, 30.0
"""Between two questions after a task's state, where its server names no time; and the bounds of what it names."""


class TaskCreated(Result):
    """What a server of 2026-07-28 answers a call with that it carries out as a task."""

    result_type: Literal["task"]
    task_id: str


class TaskState(Result):
    """A task as `tasks/get` tells it in 2026-07-28."""

    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: InputRequests = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str
    input_responses: InputResponses | None = None


class TaskRequest(Request[TaskParams, Literal["tasks/get", "tasks/update", "tasks/cancel"]]):
    """A request of 2026-07-28 about one task."""

    method: Literal["tasks/get", "tasks/update", "tasks/cancel"]
    params: TaskParams

    name_param = "taskId"


class TaskCallParams(CallToolRequestParams):
    task: TaskMetadata


class TaskCallRequest(Request[TaskCallParams, Literal["tools/call"]]):
    """A tools/call of 2025-11-25 that is to become a task."""

    method: Literal["tools/call"] = "tools/call"
    params: TaskCallParams


class TasksExtension(ClientExtension):
    """Says to servers of 2026-07-28 that they may answer with a task."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=TaskCreated, resolve=_result_of),)


async def _result_of(created: TaskCreated, context: ClaimContext) -> CallToolResult:
    result = await follow(context.session, created.task_id, None, None)
    if isinstance(result, InputRequiredResult):
        raise MCPError(INTERNAL_ERROR, "The task asks for input, which nobody can give here.")
    return result


def starts_tasks(session: ClientSession, tool: McpTool) -> bool:
    """Whether a call of the tool is to ask for a task: for servers of 2025-11-25 that support it."""
    capabilities, execution = session.server_capabilities, tool.execution
    tasks = None if capabilities is None else capabilities.tasks
    supported = tasks is not None and tasks.requests is not None and tasks.requests.tools is not None
    return supported and execution is not None and execution.task_support in ("optional", "required")


def task_in(result: Result) -> str | None:
    """The handle that a call was answered with; None for a result."""
    if isinstance(result, TaskCreated):
        return result.task_id
    task = (result.meta or {}).get(TASK)
    return task["taskId"] if isinstance(task, dict) and isinstance(task.get("taskId"), str) else None


async def follow(
    session: ClientSession, task_id: str, responses: InputResponses | None, progress: ProgressFnT | None
) -> CallToolResult | InputRequiredResult:
    """A task's result, or what a person must answer first. responses: to what it asked before. What it says of its
    state is progress. Raises MCPError for a task that failed, or that the server does not know."""
    if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return await _follow_earlier(session, task_id, progress)
    if responses:
        update = TaskRequest(method="tasks/update", params=TaskParams(task_id=task_id, input_responses=responses))
        await session.send_request(update, EmptyResult)
    while True:
        get = TaskRequest(method="tasks/get", params=TaskParams(task_id=task_id))
        task = await session.send_request(get, TaskState)
        if task.status == "completed":
            return CallToolResult.model_validate(task.result or {"content": []}, by_name=False)
        if task.status == "failed":
            error = task.error or {}
            message = error.get("message") or task.status_message or "the task failed"
            raise MCPError(error.get("code", INTERNAL_ERROR), str(message), error.get("data"))
        if task.status == "cancelled":
            said = f"The task was cancelled. {task.status_message or ''}".strip()
            return CallToolResult(content=[TextContent(type="text", text=said)], is_error=True)
        # What was just answered may be listed a moment longer.
        asked = {key: each for key, each in task.input_requests.items() if key not in (responses or {})}
        if task.status == "input_required" and asked:
            return InputRequiredResult(input_requests=asked)
        await _tell(progress, task.status_message)
        await asyncio.sleep(_interval(task.poll_interval_ms))


async def _follow_earlier(session: ClientSession, task_id: str, progress: ProgressFnT | None) -> CallToolResult:
    """What `tasks/result` waits for; meanwhile the state is asked for. The server's questions come while it waits."""
    payload = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(task_id=task_id))
    result = asyncio.ensure_future(session.send_request(payload, CallToolResult))
    try:
        while not result.done():
            get = GetTaskRequest(params=GetTaskRequestParams(task_id=task_id))
            state = asyncio.ensure_future(session.send_request(get, GetTaskResult))
            await asyncio.wait({state, result}, return_when=asyncio.FIRST_COMPLETED)
            if not state.done():
                state.cancel()
                break
            task = state.result()
            await _tell(progress, task.status_message)
            await asyncio.wait({result}, timeout=_interval(task.poll_interval))
        return await result
    finally:
        result.cancel()


async def cancel(session: ClientSession, task_id: str) -> None:
    """Tell the server that a task's result is not wanted any more. What it answers changes nothing."""
    request: Request[Any, Any]
    if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        request = TaskRequest(method="tasks/cancel", params=TaskParams(task_id=task_id))
    else:
        request = CancelTaskRequest(params=CancelTaskRequestParams(task_id=task_id))
    with contextlib.suppress(MCPError):
        await session.send_request(request, EmptyResult)


async def _tell(progress: ProgressFnT | None, message: str | None) -> None:
    if progress is not None and message:
        await progress(0.0, None, message)


def _interval(milliseconds: float | None) -> float:
    seconds = POLL_SECONDS if milliseconds is None else milliseconds / 1000
    return min(max(seconds, LEAST_POLL_SECONDS), MOST_POLL_SECONDS)
