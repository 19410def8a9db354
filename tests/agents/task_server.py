"""MCP servers that carry calls out as tasks: one of 2026-07-28 in this process; one of 2025-11-25 over stdio,
`python task_server.py FOLDER`, which keeps its tasks in files, as a durable one does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Literal

from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolRequestParams, RequestParams, Result

QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which year?",
        "requestedSchema": {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]},
    },
}


class Created(Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str = "working"
    created_at: str = "2026-07-28T00:00:00Z"
    last_updated_at: str = "2026-07-28T00:00:00Z"
    ttl_ms: int | None = None


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class Tasks(Extension):
    """Each call is a task. `done` ends it; it asks first where the tool is `count`."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.polled = asyncio.Event()
        self.done = asyncio.Event()
        self.asks = False
        self.answers: dict[str, Any] = {}
        self.ending: dict[str, Any] = {"status": "completed"}

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Any, call_next: Any) -> Any:
        self.requests.append("tools/call")
        return Created(task_id="task-1")

    def methods(self) -> list[MethodBinding]:
        methods = {"tasks/get": self.get, "tasks/update": self.update, "tasks/cancel": self.cancel}
        return [MethodBinding(method, TaskParams, handler) for method, handler in methods.items()]

    async def get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        self.requests.append("tasks/get")
        self.polled.set()
        task: dict[str, Any] = {
            "resultType": "complete", "taskId": params.task_id, "status": "working", "statusMessage": "Counting.",
            "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": None,
            "pollIntervalMs": 1,
        }  # fmt: skip
        if self.asks and not self.answers:
            return {**task, "status": "input_required", "inputRequests": {"year": QUESTION}}
        if self.done.is_set():
            said = f"counted {self.answers.get('year', {}).get('content', '')}".strip()
            ending = dict(self.ending)
            if ending["status"] == "completed":
                ending["result"] = {"content": [{"type": "text", "text": said}]}
            return {**task, **ending}
        return task

    async def update(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        self.requests.append("tasks/update")
        self.answers.update(params.input_responses or {})
        return {"resultType": "complete"}

    async def cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        self.requests.append("tasks/cancel")
        return {"resultType": "complete"}


def task_server(tasks: Tasks) -> MCPServer:
    server = MCPServer("counting", extensions=[tasks])

    @server.tool(structured_output=False)
    def count() -> str:
        """Count."""
        raise AssertionError("each call is a task")

    return server


def main(folder: Path) -> None:
    """A server of 2025-11-25: `asked` and `done` in the folder say what a task does, `requests` is what it was sent."""
    waiting: dict[str, Any] | None = None

    def send(message: dict[str, Any]) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def result(id: Any, done: dict[str, Any]) -> None:
        send({"id": id, "result": done})

    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        with (folder / "requests").open("a") as log:
            log.write(f"{method or json.dumps(message['result'])}\n")
        now = {"createdAt": "2025-11-25T00:00:00Z", "lastUpdatedAt": "2025-11-25T00:00:00Z", "ttl": 1000}
        task = {"taskId": "task-1", "status": "working", "statusMessage": "Counting.", "pollInterval": 1, **now}
        match method:
            case "initialize":
                capabilities = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
                server = {"name": "counting", "version": "1"}
                result(id, {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": server})
            case "tools/list":
                tool = {"name": "count", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
                result(id, {"tools": [tool]})
            case "tools/call":
                assert message["params"]["task"]["ttl"] > 0
                result(id, {"task": task})
            case "tasks/get":
                result(id, task)
            case "tasks/result":
                waiting = {"id": id}
                if (folder / "asked").exists():
                    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "task-1"}}}
                    send({"id": "q", "method": QUESTION["method"], "params": {**QUESTION["params"], **related}})
            case "tasks/cancel":
                result(id, {**task, "status": "cancelled"})
            case None if id == "q":
                (folder / "asked").unlink()
                (folder / "done").write_text(json.dumps(message["result"]["content"]))
            case None | "notifications/initialized" | "notifications/cancelled":
                pass
            case _:
                send({"id": id, "error": {"code": -32601, "message": f"There is no {method}."}})
        if waiting is not None and (folder / "done").exists():
            said = f"counted {(folder / 'done').read_text()}"
            result(waiting["id"], {"content": [{"type": "text", "text": said}]})
            waiting = None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
