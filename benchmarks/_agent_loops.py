"""One loop of `agent_turns.py` in a process of its own: `python _agent_loops.py LOOP BASE_URL SERVER_PID`.

Stands alone, since a framework may be installed where nothing of ours is. Reads one order a line from standard input,
{"task": ..., "agents": N}, has so many agents do the task at once, and answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import httpx

SECONDS = 300.0


def cpu_of(process: int) -> float:
    """Seconds of CPU that a process has used, all threads; 0 where the system does not tell."""
    nanoseconds = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        try:
            nanoseconds += int(thread.read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return nanoseconds / 1e9


@dataclasses.dataclass
class Watch:
    """What one agent's run comes to, in seconds. first: from the message, or the last result, to the next that the
    model says, for each turn. prepared: of the server's CPU from the last result to the next token. cpu: to the end.
    cached: prompt tokens that the
    server says were found. used: tokens of each turn's prompt and answer, where the loop tells. calls: how many were
    made."""

    server: int
    first: list[float] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    prepared: float = 0.0
    cpu: float = 0.0
    cached: int = 0
    used: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    calls: int = 0
    text: str = ""

    def begin(self) -> None:
        self._began = self._mark = time.perf_counter()
        self._waits = True

    def said(self) -> None:
        """The model says something; what counts is the first after a message or a result."""
        if self._waits:
            self.first.append(time.perf_counter() - self._mark)
            self._waits = False
            if self.server and self.calls:
                self.prepared = cpu_of(self.server) - self._cpu

    def result(self) -> None:
        """A tool has answered."""
        self.calls += 1
        self._waits, self._mark = True, time.perf_counter()
        self._cpu = cpu_of(self.server) if self.server else 0.0

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu = (cpu_of(self.server) - self._cpu) if self.server and self.calls else 0.0

    def told(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


Task = dict[str, Any]
Loop = Callable[[str, Task, Watch], Awaitable[None]]


def salted(task: Task) -> dict[str, Any]:
    """What keeps the runs of a measurement from each other's cache, and how the model is asked."""
    asked = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": task["most"]}
    if not task["upstream"]:  # llama.cpp and vLLM
        asked |= {"cache_salt": os.urandom(12).hex()}
    if task["required"]:
        asked |= {"parallel_tool_calls": False}
    return asked


def tool_of(task: Task, watch: Watch) -> Callable[[str], Awaitable[str]]:
    async def get_weather(location: str) -> str:
        """The weather in a place."""
        await asyncio.sleep(task["tool"])
        watch.result()
        return str(task["result"]).replace("PLACE", location)

    if task["places"]:  # the schema leaves random weights no choice
        get_weather.__annotations__["location"] = Literal[tuple(task["places"])]
    return get_weather


@functools.cache
def openai_client(base: str) -> Any:
    """One for all runs, with connections that are kept."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{base}/v1", api_key="none", timeout=SECONDS)


@functools.cache
def http_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=SECONDS, limits=httpx.Limits(max_connections=None))


async def native(base: str, task: Task, watch: Watch) -> None:
    """Our loop; the client reads events and runs no tools."""
    messages = [{"id": f"h{at}", "role": role, "content": text} for at, (role, text) in enumerate(task["history"])]
    messages.append({"id": "u", "role": "user", "content": task["question"]})
    forwarded = {"temperature": 0, **salted(task), **({"tool_choice": "required"} if task["required"] else {})}
    body = {"threadId": os.urandom(8).hex(), "runId": os.urandom(8).hex(), "messages": messages, "state": {}}
    body |= {"tools": [], "context": [], "forwardedProps": forwarded}
    said = {"TOOL_CALL_START", "TEXT_MESSAGE_START", "REASONING_START"}
    watch.begin()
    async with http_client().stream("POST", f"{base}/agui/native{task['tool_name']}", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                _see(json.loads(line[5:]), said, watch)
    watch.end()


def _see(event: dict[str, Any], said: set[str], watch: Watch) -> None:
    kind = event["type"]
    if kind in said:
        watch.said()
    elif kind == "TOOL_CALL_RESULT":
        watch.result()
    elif kind == "TEXT_MESSAGE_CONTENT":
        watch.text += event["delta"]
    elif kind == "RUN_ERROR":
        raise SystemExit(f"the server's run failed: {event['message']}")
    elif kind == "RUN_FINISHED":
        watch.cached = sum(used.get("cachedInputTokens") or 0 for used in event["usage"])


async def pydantic_ai(base: str, task: Task, watch: Watch) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def settings(context: Any) -> Any:
        choice = {"tool_choice": "required"} if task["required"] and not watch.calls else {}
        return {"temperature": 0, "extra_body": {**body, **choice}}

    body = salted(task)
    model = OpenAIChatModel(task["model"], provider=OpenAIProvider(openai_client=openai_client(base)))
    agent: Any = Agent(model, tools=[tool_of(task, watch)], model_settings=settings)
    history = [
        ModelRequest(parts=[UserPromptPart(text)]) if role == "user" else ModelResponse(parts=[TextPart(text)])
        for role, text in task["history"]
    ]
    watch.begin()
    async with agent.run_stream_events(task["question"], message_history=history) as events:
        async for event in events:
            if event.event_kind == "part_start":
                watch.said()
            elif event.event_kind == "agent_run_result":
                watch.text, watch.cached = str(event.result.output), event.result.usage.cache_read_tokens
    watch.end()


async def langgraph(base: str, task: Task, watch: Watch) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    def chosen(state: Any, runtime: Any) -> Any:
        choice = {"tool_choice": "required"} if task["required"] and not watch.calls else {}
        return model.bind_tools(tools, **choice)

    tools = [tool(tool_of(task, watch))]
    asked = salted(task)
    most = asked.pop("max_tokens")
    model = ChatOpenAI(
        model=task["model"], base_url=f"{base}/v1", api_key=lambda: "none", temperature=0, extra_body=asked,
        max_tokens=most, timeout=SECONDS, stream_usage=True, streaming=True,
    )  # fmt: skip
    graph: Any = create_react_agent(chosen, tools)
    watch.begin()
    messages = [*map(tuple, task["history"]), ("user", task["question"])]
    async for piece, _ in graph.astream({"messages": messages}, stream_mode="messages"):
        if piece.type == "AIMessageChunk":
            if piece.content or piece.tool_call_chunks:
                watch.said()
            if not piece.tool_call_chunks:
                watch.text += piece.content
            if used := piece.usage_metadata:
                watch.cached += used.get("input_token_details", {}).get("cache_read", 0)
                watch.used.append((used["input_tokens"], used["output_tokens"]))
    watch.end()


async def openai_agents(base: str, task: Task, watch: Watch) -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    asked = salted(task)
    settings = ModelSettings(
        temperature=0, include_usage=True, max_tokens=asked.pop("max_tokens"), extra_body=asked,
        tool_choice="required" if task["required"] else None,
    )  # fmt: skip
    model = OpenAIChatCompletionsModel(task["model"], openai_client(base))
    agent: Any = Agent(name="a", model=model, tools=[function_tool(tool_of(task, watch))], model_settings=settings)
    items: list[Any] = [{"role": role, "content": text} for role, text in task["history"]]
    watch.begin()
    result = Runner.run_streamed(agent, [*items, {"role": "user", "content": task["question"]}])
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_item.added":
            watch.said()
    watch.end()
    watch.text = str(result.final_output)
    watch.cached = result.context_wrapper.usage.input_tokens_details.cached_tokens


LOOPS: dict[str, Loop] = {
    "native": native,
    "pydantic-ai": pydantic_ai,
    "LangGraph": langgraph,
    "OpenAI Agents SDK": openai_agents,
}


async def obey(name: str, base: str, server: int, order: dict[str, Any]) -> dict[str, Any]:
    agents = order["agents"]
    watches = [Watch(server if agents == 1 else 0) for _ in range(agents)]
    began = time.perf_counter()
    await asyncio.gather(*(LOOPS[name](base, order["task"], watch) for watch in watches))
    return {"seconds": time.perf_counter() - began, "runs": [watch.told() for watch in watches]}


def main() -> None:
    warnings.simplefilter("ignore")
    name, base, server = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with asyncio.Runner() as runner:  # one event loop for all runs, whose connections are kept
        for line in sys.stdin:
            print(json.dumps(runner.run(obey(name, base, server, json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
