"""MCP tasks: calls that a server answers with a handle, with which any gateway can fetch the result later.

Servers of the protocol 2026-07-28 decide themselves (the extension `io.modelcontextprotocol/tasks`, SEP-2663): they
return a handle instead of a result, `tasks/get` returns the state and the result, and `tasks/update` takes a person's
answers. Servers of 2025-11-25 are asked for a task if their tool supports it, and `tasks/result` waits for its end.
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
"""The interval between requests of a task's state if its server names none, and the limits of the server's interval."""


class TaskCreated(Result):
    """The answer of a server of 2026-07-28 to a call that it executes as a task."""

    result_type: Literal["task"]
    task_id: str


class TaskState(Result):
    """A task's state as `tasks/get` of 2026-07-28 returns it."""

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
    """A tools/call of 2025-11-25 that requests a task."""

    method: Literal["tools/call"] = "tools/call"
    params: TaskCallParams


class TasksExtension(ClientExtension):
    """Declares to servers of 2026-07-28 that they may answer with a task."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        async def result_of(created: TaskCreated, context: ClaimContext) -> CallToolResult:
            result = await follow(context.session, created.task_id, None, None)
            if isinstance(result, InputRequiredResult):
                raise MCPError(INTERNAL_ERROR, "The task asks for input, which is not possible here.")
            return result

        return (ResultClaim(result_type="task", model=TaskCreated, resolve=result_of),)


def starts_tasks(session: ClientSession, tool: McpTool) -> bool:
    """Whether a call of the tool requests a task, which servers of 2025-11-25 may support."""
    capabilities, execution = session.server_capabilities, tool.execution
    tasks = None if capabilities is None else capabilities.tasks
    supported = tasks is not None and tasks.requests is not None and tasks.requests.tools is not None
    return supported and execution is not None and execution.task_support in ("optional", "required")


def task_in(result: Result) -> str | None:
    """Return the handle in the answer to a call; None if the answer is a result."""
    if isinstance(result, TaskCreated):
        return result.task_id
    task = (result.meta or {}).get(TASK)
    return task["taskId"] if isinstance(task, dict) and isinstance(task.get("taskId"), str) else None


async def follow(
    session: ClientSession, task_id: str, responses: InputResponses | None, progress: ProgressFnT | None
) -> CallToolResult | InputRequiredResult:
    """Wait for a task's result, or for the questions that a person must answer first.

    responses: the answers to its earlier questions. progress: receives its status messages. Raises MCPError for a task
    that failed or is unknown to the server.
    """
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
            text = f"The task was cancelled. {task.status_message or ''}".strip()
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
        # Questions that were just answered may still be listed for a moment.
        requests = {key: each for key, each in task.input_requests.items() if key not in (responses or {})}
        if task.status == "input_required" and requests:
            return InputRequiredResult(input_requests=requests)
        await _report_progress(progress, task.status_message)
        await asyncio.sleep(_interval(task.poll_interval_ms))


async def _follow_earlier(session: ClientSession, task_id: str, progress: ProgressFnT | None) -> CallToolResult:
    """Wait for `tasks/result` and poll the state meanwhile. The server asks its questions during this time."""
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
            await _report_progress(progress, task.status_message)
            await asyncio.wait({result}, timeout=_interval(task.poll_interval))
        return await result
    finally:
        result.cancel()


async def cancel(session: ClientSession, task_id: str) -> None:
    """Tell the server that a task's result is no longer needed. Its answer is ignored."""
    request: Request[Any, Any]
    if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        request = TaskRequest(method="tasks/cancel", params=TaskParams(task_id=task_id))
    else:
        request = CancelTaskRequest(params=CancelTaskRequestParams(task_id=task_id))
    with contextlib.suppress(MCPError):
        await session.send_request(request, EmptyResult)


async def _report_progress(progress: ProgressFnT | None, message: str | None) -> None:
    if progress is not None and message:
        await progress(0.0, None, message)


def _interval(milliseconds: float | None) -> float:
    seconds = POLL_SECONDS if milliseconds is None else milliseconds / 1000
    return min(max(seconds, LEAST_POLL_SECONDS), MOST_POLL_SECONDS)
