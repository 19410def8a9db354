"""Tools that coding agents declare besides functions, through the real SDKs: what they send and what they read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import TypeAdapter

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from tests.server import Running, scripted, serving

SEND = {"type": "function", "name": "send", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
MAIL = {"type": "namespace", "name": "mail", "description": "Mail.", "tools": [SEND]}


def call(name: str, **arguments: object) -> Script:
    return Script(text=f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


def openai_of(running: Running) -> Any:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none")


def anthropic_of(running: Running) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=running.url, api_key="none")


def prompt_of(running: Running, request: GenerationRequest) -> str:
    return running.server.model.prompts.detokenize(request.prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool", "made", "expected"),
    [
        (MAIL, call("mail__send", to="Ada"), {"type": "function_call", "name": "send", "namespace": "mail"}),
        (
            {"type": "local_shell"},
            call("local_shell", command=["ls", "-l"], working_directory="/tmp"),
            {"type": "local_shell_call", "action": {
                "type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": None, "user": None,
                "working_directory": "/tmp",
            }},
        ),
        (
            {"type": "local_shell"},
            call("local_shell", command="ls -l"),
            {"type": "local_shell_call", "action": {
                "type": "exec", "command": ["bash", "-lc", "ls -l"], "env": {}, "timeout_ms": None, "user": None,
                "working_directory": None,
            }},
        ),
        (
            {"type": "shell", "environment": {"type": "local"}},
            call("shell", commands=["ls", "pwd"]),
            {"type": "shell_call", "action": {
                "commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None,
            }},
        ),
        (
            {"type": "apply_patch"},
            call("apply_patch", type="update_file", path="a.txt", diff="@@\n-x\n+y\n"),
            {"type": "apply_patch_call", "operation": {
                "type": "update_file", "path": "a.txt", "diff": "@@\n-x\n+y\n",
            }},
        ),
        (
            {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": None},
            call("tool_search", query="mail"),
            {"type": "tool_search_call", "arguments": {"query": "mail"}, "execution": "client"},
        ),
    ],
    ids=["namespace", "local_shell", "local_shell as text", "shell", "apply_patch", "tool_search"],
)  # fmt: skip
async def test_a_call_has_its_tools_item(tool: Any, made: Script, expected: dict[str, Any], stream: bool) -> None:
    async with serving(scripted([made, Script(text="Done.")])) as running, openai_of(running) as client:
        if stream:
            async with client.responses.stream(model="default", input="Go.", tools=[tool]) as events:
                answer: Any = await events.get_final_response()
        else:
            answer = await client.responses.create(model="default", input="Go.", tools=[tool])
        item = answer.output[-1]
        assert {name: item.to_dict(exclude_unset=False, exclude_none=False)[name] for name in expected} == expected
        assert item.status == "completed"
        result = RESULTS[item.type](item.call_id)
        history: Any = ["Go.", item.to_dict(), result]
        history[0] = {"role": "user", "content": "Go."}
        again = await client.responses.create(model="default", input=history, tools=[tool])
        assert again.output_text == "Done."
        prompt = prompt_of(running, running.engine.requests[-1])
    assert "the result" in prompt
    assert made.text.split('"name": "')[1].split('"')[0] in prompt.partition("Go.")[2], "the call is in the history"


RESULTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "function_call": lambda id: {"type": "function_call_output", "call_id": id, "output": "the result"},
    "local_shell_call": lambda id: {"type": "local_shell_call_output", "id": id, "output": "the result"},
    "shell_call": lambda id: {
        "type": "shell_call_output", "call_id": id,
        "output": [{"stdout": "the result", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "apply_patch_call": lambda id: {
        "type": "apply_patch_call_output", "call_id": id, "status": "completed", "output": "the result",
    },
    "tool_search_call": lambda id: {
        "type": "tool_search_output", "call_id": id, "execution": "client", "status": "completed",
        "tools": [{**SEND, "name": "the result", "defer_loading": True}],
    },
}  # fmt: skip


async def test_a_deferred_tool_is_offered_once_a_search_has_found_it() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": None}
    deferred = {**SEND, "defer_loading": True}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "status": "completed"}
    history = [
        {"role": "user", "content": "Go."},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "mail"}},
        {**found, "tools": [deferred]},
    ]
    async with serving(scripted("Done.")) as running, openai_of(running) as client:
        await client.responses.create(model="default", input="Go.", tools=[search, deferred])
        await client.responses.create(model="default", input=history, tools=[search, deferred])
        await client.responses.create(model="default", input=history, tools=[search])
        before, *after = (prompt_of(running, request) for request in running.engine.requests)
    assert '"send"' not in before and '"tool_search"' in before
    assert all('"send"' in prompt for prompt in after)


MANY = [{**SEND, "name": f"tool_{number}", "description": "A tool.", "defer_loading": True} for number in range(3)]
LONG = "Send a mail to Ada. " + "She likes long mails. " * 40


def shared(before: str, after: str) -> float:
    """The share of the earlier prompt with which the later one begins."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    return len(list(same)) / len(before)


async def test_the_tools_of_a_search_follow_the_conversation_on_responses() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": None}
    namespace = {**MAIL, "tools": [{**SEND, "defer_loading": True}]}
    user: Any = {"role": "user", "content": LONG}
    request = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "mail"}}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "status": "completed"}
    for tools, result in (
        ([search, *MANY, {**SEND, "defer_loading": True}], SEND),
        ([search, *MANY, namespace], namespace),
        ([search], namespace),  # defined by the search alone
    ):
        history = [user, request, {**found, "tools": [result]}]
        name = "send" if result is SEND else "mail__send"
        script = [Script(text="No."), call(name, to="Ada"), Script(text="Sent.")]
        async with serving(scripted(script)) as running, openai_of(running) as client:
            asked: Any = {"model": "default", "tools": tools}
            await client.responses.create(input=[user], **asked)
            answer = await client.responses.create(input=history, **asked)
            sent = answer.output[-1]
            assert (sent.type, sent.name, json.loads(sent.arguments)) == ("function_call", "send", {"to": "Ada"})
            output = {"type": "function_call_output", "call_id": sent.call_id, "output": "ok"}
            await client.responses.create(input=[*history, sent.to_dict(), output], **asked)
            first, second, third = (prompt_of(running, each) for each in running.engine.requests)
            assert all("tool_0" not in prompt for prompt in (first, second, third))
            assert f'"{name}"' not in first and f'"{name}"' in second.partition(LONG)[2]
            assert shared(first, second) > 0.98 and shared(second, third) > 0.98


async def test_the_tools_of_a_search_stay_while_stored_responses_are_continued() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": None}
    deferred = {**SEND, "defer_loading": True}
    script = [call("tool_search", query="mail"), Script(text="Found."), call("send", to="Ada"), Script(text="Sent.")]
    for way in ("previous_response_id", "conversation"):
        async with serving(scripted(script)) as running, openai_of(running) as client:
            asked: Any = {"model": "default", "tools": [search, deferred]}
            if way == "conversation":
                asked["conversation"] = (await client.conversations.create()).id

            async def go(items: Any, last: Any = None, *, way: str = way, asked: Any = asked) -> Any:
                past = {} if last is None or way == "conversation" else {"previous_response_id": last.id}
                return await client.responses.create(input=items, **asked, **past)

            first = await go(LONG)
            found = {"type": "tool_search_output", "call_id": first.output[-1].call_id, "execution": "client"}
            second = await go([{**found, "status": "completed", "tools": [deferred]}], first)
            third = await go("Send it.", second)
            sent = third.output[-1]
            assert (sent.type, sent.name) == ("function_call", "send")
            await go([{"type": "function_call_output", "call_id": sent.call_id, "output": "ok"}], third)
            prompts = [prompt_of(running, each) for each in running.engine.requests]
            assert len({prompt.partition(LONG)[0] for prompt in prompts}) == 1
            # The template rewrites an earlier answer once the user has written again, so the third prompt differs.
            assert shared(prompts[0], prompts[1]) > 0.98 and shared(prompts[2], prompts[3]) > 0.98
            assert all(prompt.count('"send"') >= 1 for prompt in prompts[1:])
            third_request = running.engine.requests[2]
            assert third_request.constraint is not None and "send" in str(third_request.constraint)


@pytest.mark.parametrize("wire", ["responses", "messages"])
async def test_the_turn_after_a_search_finds_the_conversation_cached(wire: str) -> None:
    async with (
        serving(local=True) as running, openai_of(running) as openai_client, anthropic_of(running) as anthropic_client,
    ):  # fmt: skip

        async def usage(found: bool) -> tuple[int, int]:
            """Tokens of the prompt, and those that were cached."""
            user: Any = {"role": "user", "content": LONG}
            if wire == "responses":
                search: Any = {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": None}
                request = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
                output = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": MANY}
                answer = await openai_client.responses.create(
                    model="default", input=[user, *([request, output] if found else [])], tools=[search, *MANY],
                    max_output_tokens=1, store=False,
                )  # fmt: skip
                return answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens
            tools: Any = [FIND, *({**TOOL, "name": each["name"]} for each in MANY)]
            references = [{"type": "tool_reference", "tool_name": each["name"]} for each in MANY]
            result: Any = {"type": "tool_result", "tool_use_id": "t", "content": references}
            history: Any = [user, *(SEARCHED[1:2] if found else []), *([{"role": "user", "content": [result]}] * found)]
            made = await anthropic_client.messages.create(model="default", max_tokens=1, messages=history, tools=tools)
            cached = made.usage.cache_read_input_tokens or 0
            return made.usage.input_tokens + cached, cached

        first, _ = await usage(found=False)
        second, cached = await usage(found=True)
    assert second > first + 60 and cached >= 0.9 * first


@pytest.mark.parametrize("kind", ["web_search", "image_generation", "code_interpreter", "file_search"])
async def test_a_tool_of_openais_service_is_left_out_with_a_warning(kind: str) -> None:
    async with serving(scripted("Done.")) as running, openai_of(running) as client:
        answer = await client.responses.with_raw_response.create(
            model="default", input="Go.", tools=[{"type": kind}, SEND], extra_body={"client_metadata": {"a": "b"}}
        )
        prompt = prompt_of(running, running.engine.requests[-1])
    assert answer.parse().output_text == "Done."
    assert kind in answer.headers["x-warning"]
    assert '"send"' in prompt and kind not in prompt


async def test_arguments_that_are_not_the_tools_stay_a_functions() -> None:
    async with serving(scripted([call("apply_patch", type="explode")])) as running, openai_of(running) as client:
        answer = await client.responses.create(model="default", input="Go.", tools=[{"type": "apply_patch"}])
    assert (answer.output[-1].type, answer.output[-1].name) == ("function_call", "apply_patch")
    assert json.loads(answer.output[-1].arguments) == {"type": "explode"}


async def test_anthropics_tools_that_a_client_runs_have_their_schema() -> None:
    tools: Any = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    async with serving(scripted([call("bash", command="ls")])) as running, anthropic_of(running) as client:
        answer = await client.messages.with_raw_response.create(
            model="default", max_tokens=50, messages=[{"role": "user", "content": "Go."}], tools=tools
        )
        prompt = prompt_of(running, running.engine.requests[-1])
    block: Any = (await answer.parse()).content[-1]
    assert (block.type, block.name, block.input) == ("tool_use", "bash", {"command": "ls"})
    assert all(name in prompt for name in ('"bash"', '"str_replace_based_edit_tool"', '"memory"'))
    assert "web_search" not in prompt and "web_search" in answer.headers["x-warning"]


TOOL: dict[str, Any] = {"name": "send", "input_schema": {"type": "object"}, "defer_loading": True}
FIND: dict[str, Any] = {"name": "ToolSearch", "input_schema": {"type": "object"}}
SEARCHED: list[dict[str, Any]] = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "send"}]},
    ]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("tools", "messages", "offered"),
    [
        ([FIND, TOOL], SEARCHED[:1], False),
        ([FIND, TOOL], SEARCHED, True),
        ([FIND, TOOL, {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}], SEARCHED[:1], True),
        (
            [FIND, TOOL],
            [*SEARCHED[:1], {"role": "system", "content": [
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "send"}},
            ]}],
            True,
        ),
        (
            [FIND],
            [*SEARCHED[:1], {"role": "system", "content": [
                {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL}},
            ]}],
            True,
        ),
        (
            [FIND, {**TOOL, "defer_loading": False}],
            [*SEARCHED[:1], {"role": "system", "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "send"}},
            ]}],
            False,
        ),
    ],
    ids=["deferred", "referenced", "the service would search", "added", "defined", "removed"],
)  # fmt: skip
async def test_the_tools_that_a_conversation_has_brought_in_are_offered(
    tools: Any, messages: Any, offered: bool
) -> None:
    async with serving(scripted("Done.")) as running, anthropic_of(running) as client:
        await client.beta.messages.create(model="default", max_tokens=50, messages=messages, tools=tools)
        prompt = prompt_of(running, running.engine.requests[-1])
    assert ('"send"' in prompt) is offered


def test_the_items_are_those_that_the_sdk_reads() -> None:
    from openai.types.responses import ResponseOutputItem

    from adapters.openai_responses.client_tools import ToolForm, call_item

    item = call_item(ToolForm("shell_call"), '{"commands": ["ls"]}')
    assert item is not None
    read: Any = TypeAdapter(ResponseOutputItem).validate_python(
        {"id": "sh_1", "type": "shell_call", "call_id": "c", "status": "completed", **item}
    )
    assert read.action.commands == ["ls"]
