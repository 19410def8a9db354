"""This server's model as a LangChain chat model directly on the engine, and the conversion of messages both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec
from ag_ui.core import AssistantMessage, Message, SystemMessage, Tool, ToolCall, ToolMessage, UserMessage
from ag_ui.core.types import FunctionCall
from langchain_core import messages as lc
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agent_server.agents.guests.own_engine import OwnEngine, Request, current
from agent_server.agents.turn import Turn
from events.options import ToolChoice
from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs, ToolCallStart

FROM_CLIENT = "agui_client"
"""Key in a message's `response_metadata`, which is not sent to providers: the message came from a client."""
NOT_MADE = "The call was not made."


def to_langchain(messages: Iterable[Message], before: Sequence[object] = ()) -> list[lc.BaseMessage]:
    """Convert AG-UI messages for a framework. before: the messages that it already has.

    Reasoning and activities are left out, and so are calls without a result and results without a call, which providers
    refuse.
    """
    message_list = list(messages)
    answered = {each.tool_call_id for each in message_list if isinstance(each, ToolMessage)}
    known_calls = {call["id"] for each in before if isinstance(each, lc.AIMessage) for call in each.tool_calls}
    known_calls |= {
        call.id for each in message_list if isinstance(each, AssistantMessage) for call in each.tool_calls or ()
    }
    converted: list[lc.BaseMessage] = []
    for each in message_list:
        match each:
            case UserMessage():
                converted.append(
                    lc.HumanMessage(content_of(each.content), id=each.id, response_metadata={FROM_CLIENT: True})
                )
            case AssistantMessage():
                calls = [_call(call) for call in each.tool_calls or () if call.id in answered]
                converted.append(lc.AIMessage(each.content or "", id=each.id, tool_calls=calls))
            case ToolMessage() if each.tool_call_id in known_calls:
                failed = (each.metadata or {}).get("isError") is True
                converted.append(
                    lc.ToolMessage(
                        content_of(each.content),
                        id=each.id,
                        tool_call_id=each.tool_call_id,
                        status="error" if failed or each.error else "success",
                    )
                )
            case _ if each.role in ("system", "developer"):
                converted.append(lc.SystemMessage(str(each.content), id=each.id, response_metadata={FROM_CLIENT: True}))
            case _:
                pass
    return converted


def unanswered(stored: Sequence[object], rest: Sequence[Message]) -> list[lc.BaseMessage]:
    """Error results for calls in a state that have no result and will get none, for example after a stopped run."""
    answered = {each.tool_call_id for each in rest if isinstance(each, ToolMessage)}
    answered |= {each.tool_call_id for each in stored if isinstance(each, lc.ToolMessage)}
    calls = [call for each in stored if isinstance(each, lc.AIMessage) for call in each.tool_calls]
    return [
        lc.ToolMessage(NOT_MADE, tool_call_id=str(call["id"]), name=call["name"], status="error")
        for call in calls
        if call["id"] not in answered
    ]


def to_messages(messages: Sequence[lc.BaseMessage], new_id: Any) -> list[Message]:
    """Convert a framework's messages for the prompt builder. new_id: prefix → id, for messages without one."""
    converted: list[Message] = []
    for message in messages:
        id, text = message.id or new_id("msg"), message.text
        match message:
            case lc.SystemMessage():
                converted.append(SystemMessage(id=id, content=text))
            case lc.AIMessage():
                calls = [
                    ToolCall(
                        id=str(call["id"]),
                        function=FunctionCall(name=call["name"], arguments=msgspec.json.encode(call["args"]).decode()),
                    )
                    for call in message.tool_calls
                ]
                converted.append(AssistantMessage(id=id, content=text or None, tool_calls=calls or None))
            case lc.ToolMessage():
                converted.append(ToolMessage(id=id, content=text, tool_call_id=message.tool_call_id))
            case _:
                converted.append(UserMessage(id=id, content=text))
    return converted


def _call(call: ToolCall) -> lc.ToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        arguments = {}
    return lc.ToolCall(
        name=call.function.name, args=arguments if isinstance(arguments, dict) else {}, id=call.id, type="tool_call"
    )


def content_of(content: Any) -> Any:
    """Content in LangChain's form: a string unchanged, parts as standard content blocks."""
    if isinstance(content, str):
        return content
    blocks: list[dict[str, Any]] = []
    for each in content:
        part = each.model_dump(mode="json", by_alias=True)
        if part["type"] == "text":
            blocks.append({"type": "text", "text": part["text"]})
            continue
        source, kind = part["source"], "file" if part["type"] == "document" else part["type"]
        mime = {"mime_type": source["mimeType"]} if source.get("mimeType") else {}
        value_key = {"data": "base64", "url": "url", "file": "file_id"}[source["type"]]
        blocks.append({"type": kind, value_key: source["value"], **mime})
    return blocks


MODES: dict[object, Literal["auto", "none", "required"]] = {
    None: "auto", "auto": "auto", "none": "none", "any": "required", "required": "required", True: "required"
}  # fmt: skip


class ServerModel(BaseChatModel):
    """The model of the current run. Parameters that are None come from the client's request.

    Reasoning is in `content_blocks` (and in `additional_kwargs["reasoning_content"]`).
    """

    temperature: float | None = None
    max_tokens: int | None = None
    thinking: bool | None = None

    @property
    def _llm_type(self) -> str:
        return "agent-server"

    def bind_tools(
        self,
        tools: Sequence[dict[str, object] | type | Callable[..., object] | BaseTool],
        *,
        tool_choice: str | bool | None = None,
        **kwargs: object,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools. tool_choice: "auto", "none", "any", or a tool's name."""
        definitions = [convert_to_openai_tool(each) for each in tools]
        return self.bind(tools=definitions, tool_choice=tool_choice, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> AsyncIterator[ChatGenerationChunk]:
        engine = current()
        async for chunk in self._chunks(engine, messages, stop, kwargs):
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        return await self._whole(current(), messages, stop, kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        """Generate for nodes that are plain functions, which LangGraph runs in threads."""
        engine = current()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is engine.loop:
            raise RuntimeError("This call would block the server's event loop. Use ainvoke or astream.")
        work = self._whole(engine, messages, stop, kwargs)
        return asyncio.run_coroutine_threadsafe(work, engine.loop).result()

    async def _whole(
        self, engine: OwnEngine, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, object]
    ) -> ChatResult:
        whole: AIMessageChunk | None = None
        async for chunk in self._chunks(engine, messages, stop, options):
            message_chunk = chunk.message
            assert isinstance(message_chunk, AIMessageChunk)
            whole = message_chunk if whole is None else whole + message_chunk
        assert whole is not None
        message = AIMessage(
            content=whole.content,
            additional_kwargs=whole.additional_kwargs,
            response_metadata=whole.response_metadata,
            tool_calls=whole.tool_calls,
            invalid_tool_calls=whole.invalid_tool_calls,
            usage_metadata=whole.usage_metadata,
            id=whole.id,
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _chunks(
        self, engine: OwnEngine, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> AsyncIterator[ChatGenerationChunk]:
        id = engine.new_id("msg")
        indexes: dict[str, int] = {}
        sampling = {
            "temperature": options.get("temperature", self.temperature),
            "max_tokens": options.get("max_tokens", self.max_tokens),
            "stop": tuple(stop) if stop else None,
        }
        functions = [each["function"] for each in options.get("tools") or ()]
        # LangChain's keyword, a tool's name, or OpenAI's object.
        choice = options.get("tool_choice")
        if isinstance(choice, dict):
            choice = choice.get("function", {}).get("name")
        request = Request(
            messages=to_messages(messages, engine.new_id),
            tools=[
                Tool(
                    name=each["name"],
                    description=each.get("description") or "",
                    parameters=each.get("parameters") or {"type": "object", "properties": {}},
                )
                for each in functions
            ],
            sampling={name: value for name, value in sampling.items() if value is not None},
            tool_choice=ToolChoice(MODES[choice]) if choice in MODES else ToolChoice("named", (str(choice),)),
            thinking=self.thinking,
        )
        async for item in engine.generate(request):
            fields: dict[str, object] | None
            if isinstance(item, Turn):
                used = item.finished.usage
                usage = UsageMetadata(
                    input_tokens=used.prompt_tokens,
                    output_tokens=used.completion_tokens,
                    total_tokens=used.prompt_tokens + used.completion_tokens,
                )
                metadata = {"finish_reason": item.finished.reason, "model_name": engine.name}
                fields = {"usage_metadata": usage, "response_metadata": metadata, "chunk_position": "last"}
            else:
                fields = _fields(item, indexes)
            if fields is not None:
                yield ChatGenerationChunk(message=AIMessageChunk(**{"content": "", "id": id, **fields}))


def _fields(event: Event, indexes: dict[str, int]) -> dict[str, object] | None:
    """The chunk fields for an event; None for events without any. indexes: of the calls, in the order they started."""
    match event:
        case TextMessageContent(delta=delta):
            return {"content": delta}
        case ReasoningMessageContent(delta=delta):
            return {"additional_kwargs": {"reasoning_content": delta}}
        case ToolCallStart(tool_call_id=call, tool_call_name=name):
            indexes[call] = len(indexes)
            return {"tool_call_chunks": [tool_call_chunk(name=name, args="", id=call, index=indexes[call])]}
        case ToolCallArgs(tool_call_id=call, delta=delta):
            return {"tool_call_chunks": [tool_call_chunk(args=delta, index=indexes[call])]}
        case _:
            return None
