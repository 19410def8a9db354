"""The scenarios of tool-eval-bench's short set as agents of this server, and their evaluation from an agent's events.

The server loads `agents`: one for each scenario, whose tools are the benchmark's own simulations. Their results depend
only on the calls before them, so `evaluate` makes the calls of a stream again, which gives the benchmark's evaluators
the state that they read. TOOL_EVAL_BENCH names the folder of packages that has the benchmark.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import defaultdict
from typing import Any

import httpx
import jsonschema

from agent_server import Agent, Tool, ToolContext, ToolFault
from events.options import SamplingParams

sys.path.append(os.environ["TOOL_EVAL_BENCH"])
from tool_eval_bench.domain.scenarios import ScenarioDefinition, ScenarioState, ToolCallRecord, ToolResultRecord
from tool_eval_bench.domain.tools import (
    BENCHMARK_REFERENCE_DATE,
    BENCHMARK_REFERENCE_DAY,
    SYSTEM_PROMPT,
    UNIVERSAL_TOOLS,
)
from tool_eval_bench.evals.scenarios import SCENARIOS

MAX_STEPS = 12
"""The benchmark's own bound on the turns of a scenario."""
INSTRUCTIONS = (
    f"{SYSTEM_PROMPT}\n\nBenchmark context: today is {BENCHMARK_REFERENCE_DATE} ({BENCHMARK_REFERENCE_DAY}). "
    "Use this date for any relative time request."
)


def _agent(scenario: ScenarioDefinition) -> Agent:
    states: dict[str, ScenarioState] = defaultdict(ScenarioState)

    def made(function: dict[str, Any]) -> Tool:
        async def call(arguments: dict[str, Any], context: ToolContext) -> Any:
            record = _record(context.tool_call_id, function["name"], arguments, turn=0)
            return simulate(scenario, states[context.thread_id], record)

        def check(arguments: dict[str, object]) -> dict[str, object]:
            try:
                jsonschema.validate(arguments, function["parameters"])
            except jsonschema.ValidationError as error:
                raise ToolFault(f"Invalid arguments: {error.message}") from None
            return {"arguments": arguments}

        return Tool(
            name=function["name"], description=function["description"], parameters=function["parameters"], call=call,
            kind="async", check=check, context_parameter="context",
        )  # fmt: skip

    return Agent(
        name=scenario.id, instructions=INSTRUCTIONS, tools=[made(each["function"]) for each in UNIVERSAL_TOOLS],
        sampling=SamplingParams(temperature=0), max_steps=MAX_STEPS,
    )  # fmt: skip


def _record(call_id: str, name: str, arguments: dict[str, Any], turn: int) -> ToolCallRecord:
    return ToolCallRecord(call_id, name, json.dumps(arguments), arguments, turn, user_phase=0)


def simulate(scenario: ScenarioDefinition, state: ScenarioState, record: ToolCallRecord) -> Any:
    """Return the simulated result of the call, and note both in the state."""
    state.tool_calls.append(record)
    result = scenario.handle_tool_call(state, record)
    state.tool_results.append(ToolResultRecord(record.id, record.name, result))
    return result


def evaluate(scenario: ScenarioDefinition, url: str) -> dict[str, Any]:
    """Run a scenario's agent once and return its points (0 to 2) with the calls and the answer."""
    question = {"id": "question", "role": "user", "content": scenario.user_message}
    body = {
        "threadId": uuid.uuid4().hex, "runId": uuid.uuid4().hex, "messages": [question], "tools": [], "context": [],
        "state": {}, "forwardedProps": {},
    }  # fmt: skip
    turns: dict[str, int] = {}  # assistant messages, in their order
    texts: dict[str, str] = {}
    calls: dict[str, dict[str, Any]] = {}
    with httpx.stream("POST", f"{url}/agui/{scenario.id}", json=body, timeout=None) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line.removeprefix("data:"))
            match event["type"]:
                case "TEXT_MESSAGE_CONTENT":
                    turns.setdefault(event["messageId"], len(turns) + 1)
                    texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
                case "TOOL_CALL_START":
                    turn = turns.setdefault(event["parentMessageId"], len(turns) + 1)
                    calls[event["toolCallId"]] = {"name": event["toolCallName"], "arguments": "", "turn": turn}
                case "TOOL_CALL_ARGS":
                    calls[event["toolCallId"]]["arguments"] += event["delta"]
                case "RUN_ERROR":
                    return {"id": scenario.id, "points": 0, "summary": event["message"], "calls": list(calls.values())}
    state = ScenarioState()
    state.meta |= {"reference_date": BENCHMARK_REFERENCE_DATE, "reference_day": BENCHMARK_REFERENCE_DAY}
    for call_id, call in calls.items():
        simulate(scenario, state, _record(call_id, call["name"], json.loads(call["arguments"]), call["turn"]))
    state.assistant_messages = [texts.get(message, "") for message in turns]
    state.final_answer = state.assistant_messages[-1] if state.assistant_messages else ""
    found = scenario.evaluate(state)
    points, summary = found.points, found.summary
    for producer, consumer in scenario.dependencies:
        first = min((call.turn for call in state.tool_calls if call.name == producer), default=None)
        if first is not None and any(c.turn <= first for c in state.tool_calls if c.name == consumer):
            points, summary = 0, f"{consumer} was called before {producer} had a result."
    return {
        "id": scenario.id, "points": points, "summary": summary, "calls": list(calls.values()),
        "answer": state.final_answer,
    }  # fmt: skip


agents = [_agent(scenario) for scenario in SCENARIOS]
