"""MCP servers that requests name: OpenAI's and Anthropic's clients, and a real MCP server over HTTP."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agent_server.engines.scripted import Script
from tests.agents.models import call
from tests.conformance.test_agent_loops import TOKENIZER
from tests.server import Running, scripted, serving

SECRET = "tok-5ecret"


class McpProcess:
    """The server in a process of its own. noted: path and Authorization of each request."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "requests.log"
        self.log.touch()
        script = Path(__file__).with_name("requested_mcp_server.py")
        self.process = subprocess.Popen([sys.executable, str(script), str(self.port), str(self.log)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/", timeout=1)
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the MCP server did not start")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def noted(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpProcess]:
    made = McpProcess(tmp_path_factory.mktemp("box"))
    yield made
    made.process.kill()
    made.process.wait()


def openai_client(running: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def tool(box: McpProcess, **more: Any) -> Any:
    return {"type": "mcp", "server_label": "box", "server_url": box.url, "require_approval": "never", **more}


TWO_CALLS = call("box__add", a=2, b=3) + call("box__fail")


async def test_openais_client_reads_calls_as_they_are_made(box: McpProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="agent_server")
    engine = scripted([Script(text=TWO_CALLS), Script(text="Five.")])
    async with serving(engine, mcp_allow=(box.url,)) as running, openai_client(running) as client:
        given = tool(box, authorization=SECRET)
        events = [
            e async for e in await client.responses.create(model="default", input="go", tools=[given], stream=True)
        ]
        last: Any = events[-1]
        kept = await client.responses.retrieve(last.response.id)
    assert [event.type for event in events if "mcp" in event.type] == [
        "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress", "response.mcp_call_arguments.delta", "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.mcp_call.in_progress", "response.mcp_call_arguments.delta", "response.mcp_call_arguments.done",
        "response.mcp_call.failed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    listed, added, failed, message = last.response.output
    assert listed.type == "mcp_list_tools" and {each.name for each in listed.tools} == {"add", "search", "fail"}
    assert (added.type, added.server_label, added.name, added.output) == ("mcp_call", "box", "add", "5")
    assert added.arguments == '{"a": 2, "b": 3}' and added.status == "completed"
    assert failed.status == "failed" and "no good" in str(failed.error) and failed.output is None
    assert message.content[0].text == "Five." and last.response.status == "completed"
    assert f"/mcp Bearer {SECRET}" in box.noted
    assert SECRET not in caplog.text and SECRET not in kept.model_dump_json() and SECRET not in last.model_dump_json()


async def test_a_call_waits_for_the_approval_that_the_request_wants(box: McpProcess) -> None:
    scripts = [
        Script(text=call("box__add", a=1, b=1)),
        Script(text="Two."),
        Script(text=call("box__add", a=9, b=9)),
        Script(text="Not."),
    ]
    asked = {"model": "default", "tools": [tool(box, require_approval={"never": {"tool_names": ["search"]}})]}
    async with serving(scripted(scripts), mcp_allow=(box.url,)) as running, openai_client(running) as client:
        calls_before = len(box.noted)
        first = await client.responses.create(input="go", **asked)
        request: Any = first.output[-1]
        assert first.status == "completed" and request.type == "mcp_approval_request"
        assert (request.name, request.server_label, request.arguments) == ("add", "box", '{"a": 1, "b": 1}')
        assert not any(item.type == "mcp_call" for item in first.output) and calls_before < len(box.noted)
        with pytest.raises(openai.BadRequestError, match="Send a resume"):
            await client.responses.create(input="and?", previous_response_id=first.id, **asked)
        approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        second = await client.responses.create(input=[approval], previous_response_id=first.id, **asked)
        made: Any = next(item for item in second.output if item.type == "mcp_call")
        assert (made.name, made.output, made.arguments) == ("add", "2", '{"a": 1, "b": 1}')
        assert second.output_text == "Two."
        third = await client.responses.create(input="again", previous_response_id=second.id, **asked)
        denial = {**approval, "approval_request_id": third.output[-1].id, "approve": False, "reason": "too much"}
        fourth = await client.responses.create(input=[denial], previous_response_id=third.id, **asked)
        refused: Any = next(item for item in fourth.output if item.type == "mcp_call")
        assert (
            refused.status == "failed" and "did not approve" in str(refused.error) and "too much" in str(refused.error)
        )
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(input=[{**approval, "approval_request_id": "mcpr_no"}], **asked)


def approval(request: Any, **decision: Any) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, **decision}


async def ask(client: AsyncOpenAI, stream: bool, asked: dict[str, Any]) -> Any:
    """The response, from its last event if it is streamed."""
    answer: Any = await client.responses.create(stream=stream, **asked)
    if not stream:
        return answer
    last = [event async for event in answer][-1]
    assert last.type == "response.completed"
    return last.response


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_continues_after_an_approval(box: McpProcess, stream: bool) -> None:
    scripts = [
        Script(text=f"Adding.{call('box__add', a=1, b=1)}"), Script(text="Two."),
        Script(text=call("box__add", a=9, b=9)), Script(text="Not."), Script(text="Bye."),
    ]  # fmt: skip
    engine = scripted(scripts)
    async with serving(engine, mcp_allow=(box.url,)) as running, openai_client(running) as client:
        conversation = (await client.conversations.create(items=[{"role": "user", "content": "Be brief."}])).id
        asked = {"model": "default", "conversation": conversation, "tools": [tool(box, require_approval="always")]}

        first = await ask(client, stream, {"input": "Sum up.", **asked})
        request = first.output[-1]
        assert request.type == "mcp_approval_request" and first.status == "completed"
        listed = await client.conversations.items.retrieve(request.id, conversation_id=conversation)
        assert (listed.type, listed.name, listed.arguments) == ("mcp_approval_request", "add", '{"a": 1, "b": 1}')

        await client.conversations.items.create(conversation, items=[{"role": "user", "content": "a later note"}])
        second = await ask(client, stream, {"input": [approval(request, approve=True)], **asked})
        made = next(item for item in second.output if item.type == "mcp_call")
        assert (made.name, made.output, second.output_text) == ("add", "2", "Two.")
        assert second.conversation.id == conversation
        prompt = TOKENIZER.decode(list(engine.requests[1].prompt_token_ids))
        texts = ["Be brief.", "Sum up.", "Adding.", '"a": 1', "a later note"]
        assert [prompt.count(text) for text in ("Be brief.", "Adding.", "a later note")] == [1, 1, 1]
        assert sorted(texts, key=prompt.index) == texts

        with pytest.raises(openai.BadRequestError, match="no approval request"):  # it is answered already
            await ask(client, False, {"input": [approval(request, approve=True)], **asked})
        third = await ask(client, stream, {"input": "again", **asked})
        denial = approval(third.output[-1], approve=False, reason="too much")
        fourth = await ask(client, stream, {"input": [denial], **asked})
        refused = next(item for item in fourth.output if item.type == "mcp_call")
        assert refused.status == "failed" and "too much" in str(refused.error) and fourth.output_text == "Not."
        assert (await ask(client, stream, {"input": "bye", **asked})).output_text == "Bye."
        kinds = [item.type async for item in client.conversations.items.list(conversation, order="asc")]
    assert [kind for kind in kinds if kind not in ("message", "mcp_list_tools")] == [
        "mcp_approval_request", "mcp_approval_response", "mcp_call",
        "mcp_approval_request", "mcp_approval_response", "mcp_call",
    ]  # fmt: skip
    last = TOKENIZER.decode(list(engine.requests[-1].prompt_token_ids))
    assert last.count('"a": 1') == last.count('"a": 9') == 1 and "too much" in last


async def test_an_approval_request_that_left_its_conversation_cannot_be_answered(box: McpProcess) -> None:
    scripts = [Script(text=call("box__add", a=1, b=1)), Script(text=call("box__add", a=1, b=1)), Script(text="Hm.")]
    async with serving(scripted(scripts), mcp_allow=(box.url,)) as running, openai_client(running) as client:
        for leaving in ("deleted", "continued"):
            conversation = (await client.conversations.create()).id
            asked: Any = {"model": "default", "conversation": conversation}
            tools = [tool(box, require_approval="always")]
            first = await client.responses.create(input="go", tools=tools, **asked)
            request: Any = first.output[-1]
            if leaving == "deleted":
                await client.conversations.items.delete(request.id, conversation_id=conversation)
            else:
                assert (await client.responses.create(input="never mind", **asked)).output_text == "Hm."
            with pytest.raises(openai.BadRequestError, match="no approval request"):
                await client.responses.create(input=[approval(request, approve=True)], tools=tools, **asked)


async def test_a_call_that_nobody_can_be_asked_about_is_not_made(box: McpProcess) -> None:
    engine = scripted([Script(text=call("box__add", a=1, b=1)), Script(text="No.")])
    async with serving(engine, mcp_allow=(box.url,)) as running, openai_client(running) as client:
        given = tool(box, require_approval=None)
        made: Any = await client.responses.create(model="default", input="go", tools=[given], store=False)
    (item,) = [item for item in made.output if item.type == "mcp_call"]
    assert item.status == "failed" and item.output is None


async def test_items_that_are_sent_back_are_read(box: McpProcess) -> None:
    engine = scripted([Script(text=call("box__add", a=2, b=3)), Script(text="Five."), Script(text="Yes.")])
    async with serving(engine, mcp_allow=(box.url,)) as running, openai_client(running) as client:
        first = await client.responses.create(model="default", input="go", tools=[tool(box)], store=False)
        items = [{"role": "user", "content": "go"}, *(item.model_dump(exclude_none=True) for item in first.output)]
        again: Any = await client.responses.with_raw_response.create(
            model="default", input=[*items, {"role": "user", "content": "sure?"}], tools=[tool(box)], store=False
        )
        assert again.parse().output_text == "Yes." and "x-warning" not in again.headers


async def test_stored_calls_are_referred_to(box: McpProcess) -> None:
    """A client that stores names the items instead of sending them; the model sees the same calls and results."""
    scripts = [Script(text=call("box__add", a=2, b=3)), *(Script(text=text) for text in ("Five.", "Yes.", "Yes."))]
    async with serving(scripted(scripts), mcp_allow=(box.url,)) as running, openai_client(running) as client:
        first = await client.responses.create(model="default", input="go", tools=[tool(box)])
        assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_call", "message"]
        prompts = []
        for items in (
            [{"type": "item_reference", "id": item.id} for item in first.output],
            [item.model_dump(exclude_none=True) for item in first.output],
        ):
            sent: Any = [{"role": "user", "content": "go"}, *items, {"role": "user", "content": "sure?"}]
            again: Any = await client.responses.with_raw_response.create(
                model="default", input=sent, tools=[tool(box)], store=False
            )
            assert "x-warning" not in again.headers
            prompts.append(running.engine.requests[-1].prompt_token_ids)
    assert prompts[0] == prompts[1]


async def test_a_request_for_an_approval_is_referred_to(box: McpProcess) -> None:
    scripts = [Script(text=call("box__add", a=1, b=1)), Script(text="Two.")]
    asked: dict[str, Any] = {"model": "default", "tools": [tool(box, require_approval="always")]}
    async with serving(scripted(scripts), mcp_allow=(box.url,)) as running, openai_client(running) as client:
        first = await client.responses.create(input="go", **asked)
        reference = {"type": "item_reference", "id": first.output[-1].id}
        decided = approval(first.output[-1], approve=True)
        second = await client.responses.create(input=[reference, decided], previous_response_id=first.id, **asked)
    assert second.output_text == "Two."


async def test_only_what_the_operator_allows_is_reached(box: McpProcess, tmp_path: Path) -> None:
    other = McpProcess(tmp_path)
    try:
        away = f"http://127.0.0.1:{box.port}/away?{other.port}"
        async with (
            serving(scripted("Hi."), mcp_allow=(box.url, f"mine={other.url}", away)) as running,
            openai_client(running) as client,
        ):
            for given in (
                tool(box, server_url=f"http://127.0.0.1:{box.port}/other"),
                tool(box, server_url="http://169.254.169.254/latest"),
                tool(box, server_url=None),
            ):
                with pytest.raises(openai.BadRequestError, match="is not allowed"):
                    await client.responses.create(model="default", input="go", tools=[given])
            before = len(other.noted)
            moved: Any = await client.responses.create(
                model="default", input="go", tools=[tool(box, server_url=away, authorization=SECRET)]
            )
            assert moved.output[0].error and len(other.noted) == before, "a redirect to another origin is not followed"
            named: Any = await client.responses.create(
                model="default",
                input="go",
                tools=[tool(box, server_url=None, server_label="mine", allowed_tools=["add"])],
            )
            assert [each.name for each in named.output[0].tools] == ["add"] and len(other.noted) > before
        async with serving(scripted("Hi.")) as running, openai_client(running) as client:
            with pytest.raises(openai.BadRequestError, match="--mcp-allow"):
                await client.responses.create(model="default", input="go", tools=[tool(box)])
    finally:
        other.process.kill()
        other.process.wait()


async def test_a_web_search_goes_to_the_server_of_that_label(box: McpProcess) -> None:
    engine = scripted([Script(text=call("web_search__search", query="cats")), Script(text="Cats."), Script(text="Hi.")])
    async with serving(engine, mcp_allow=(f"web_search={box.url}",)) as running, openai_client(running) as client:
        made: Any = await client.responses.create(model="default", input="go", tools=[{"type": "web_search"}])
        references: Any = [{"type": "item_reference", "id": item.id} for item in made.output]
        go: Any = {"role": "user", "content": "go"}
        again = await client.responses.with_raw_response.create(
            model="default", input=[go, *references, go], tools=[{"type": "web_search"}]
        )
        prompt = running.server.model.prompts.detokenize(running.engine.requests[-1].prompt_token_ids)
    assert [item.type for item in made.output] == ["web_search_call", "message"]
    assert made.output[0].action.query == "cats" and made.output_text == "Cats."
    assert "One page about cats." in prompt and "x-warning" not in again.headers
    async with serving(scripted("Hi.")) as running, openai_client(running) as client:
        raw = await client.responses.with_raw_response.create(
            model="default", input="go", tools=[{"type": "web_search"}]
        )
    assert "web_search" in raw.headers["x-warning"] and raw.parse().output_text == "Hi."


async def test_anthropics_client_reads_calls_and_results(box: McpProcess) -> None:
    engine = scripted([Script(text=TWO_CALLS), Script(text="Five."), Script(text="Yes.")])
    server = {"type": "url", "name": "box", "url": box.url, "authorization_token": "ant-5ecret"}
    asked: dict[str, Any] = {
        "model": "default", "max_tokens": 99, "mcp_servers": [server], "betas": ["mcp-client-2025-11-20"],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "box", "configs": {"search": {"enabled": False}}}],
    }  # fmt: skip
    go: Any = {"role": "user", "content": "go"}
    async with (
        serving(engine, mcp_allow=(box.url,)) as running,
        AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client,
    ):
        async with client.beta.messages.stream(messages=[go], **asked) as stream:
            first = await stream.get_final_message()
        blocks: Any = first.content
        assert [block.type for block in blocks] == [
            "mcp_tool_use",
            "mcp_tool_use",
            "mcp_tool_result",
            "mcp_tool_result",
            "text",
        ]
        assert (blocks[0].name, blocks[0].server_name, blocks[0].input) == ("add", "box", {"a": 2, "b": 3})
        assert blocks[2].tool_use_id == blocks[0].id and blocks[2].content[0].text == "5" and not blocks[2].is_error
        assert blocks[3].is_error and first.stop_reason == "end_turn"
        content: Any = [block.model_dump(exclude_none=True) for block in blocks]
        sure: Any = {"role": "user", "content": "sure?"}
        again = await client.beta.messages.create(
            messages=[go, {"role": "assistant", "content": content}, sure], **asked
        )
        assert [block.type for block in again.content] == ["text"]
    assert "/mcp Bearer ant-5ecret" in box.noted
