"""A message of very many calls: its conversion and validation leave the event loop to others."""

from __future__ import annotations

from typing import Any

from ag_ui.core import RunAgentInput

from agent_server.engines.scripted import Script
from agent_server.pacing import PART, collect_yielding
from events.message import each_dict, each_model, to_dicts, to_models
from events.options import GenerationOptions
from events.vocabulary import INVALID_EVENT, Custom, RunFinished
from tests.agents.models import call
from tests.loop_turns import counted_turns
from tests.server import scripted, serving

CALLS = 6 * PART
MESSAGE: dict[str, Any] = {
    "id": "m", "role": "assistant", "content": "Look.",
    "toolCalls": [
        {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for number in range(CALLS + 1)
    ],
}  # fmt: skip


async def test_messages_of_many_calls_are_converted_in_parts_to_the_same():
    (model,), (wire,) = to_models([MESSAGE]), to_dicts(to_models([MESSAGE]))
    async with counted_turns() as turns:
        before = next(turns)
        assert await collect_yielding(each_model([MESSAGE])) == [model]
        between = next(turns)
        dicts = await collect_yielding(each_dict([model]))
        assert dicts == [wire] and list(dicts[0]) == list(wire)
        assert between - before >= 6 and next(turns) - between >= 6


async def test_the_arguments_of_many_calls_are_validated_in_parts():
    tool = {
        "name": "f", "description": "",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    }  # fmt: skip
    ask = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Hello"}]}
    script = Script(text="".join(call("f", a=1) for _ in range(CALLS)))
    async with (
        serving(scripted([script], context_length=1_000_000), local=True, max_context=1_000_000) as running,
        counted_turns() as turns,
    ):
        run = await running.server.runs.start(
            RunAgentInput.model_validate({**ask, "tools": [tool]}), GenerationOptions(stated=frozenset())
        )
        invalid, last = [], None
        async for _, last in run.events():
            if isinstance(last, Custom) and last.name == INVALID_EVENT:
                invalid.append(next(turns))
        assert isinstance(last, RunFinished) and len(invalid) == CALLS
        assert invalid[-1] - invalid[0] >= 4
