"""Messages between AG-UI and LangChain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from ag_ui.core import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from ag_ui.core.types import FunctionCall
from langchain_core import messages as lc

FROM_CLIENT = "agui_client"
"""In a message's `response_metadata`, which no provider is sent: the message came from a client."""
NOT_MADE = "The call was not made."


def to_langchain(messages: Iterable[Message], before: Sequence[object] = ()) -> list[lc.BaseMessage]:
    """AG-UI messages for a framework. before: those that it has. Reasoning and activities are left out; so are calls
    without a result and results without a call, which providers refuse."""
    given = list(messages)
    answered = {each.tool_call_id for each in given if isinstance(each, ToolMessage)}
    calls_known = {call["id"] for each in before if isinstance(each, lc.AIMessage) for call in each.tool_calls}
    calls_known |= {call.id for each in given if isinstance(each, AssistantMessage) for call in each.tool_calls or ()}
    made: list[lc.BaseMessage] = []
    for each in given:
        match each:
            case UserMessage():
                made.append(
                    lc.HumanMessage(content_of(each.content), id=each.id, response_metadata={FROM_CLIENT: True})
                )
            case AssistantMessage():
                calls = [_call(call) for call in each.tool_calls or () if call.id in answered]
                made.append(lc.AIMessage(each.content or "", id=each.id, tool_calls=calls))
            case ToolMessage() if each.tool_call_id in calls_known:
                failed = (each.metadata or {}).get("isError") is True
                made.append(
                    lc.ToolMessage(
                        content_of(each.content),
                        id=each.id,
                        tool_call_id=each.tool_call_id,
                        status="error" if failed or each.error else "success",
                    )
                )
            case _ if each.role in ("system", "developer"):
                made.append(lc.SystemMessage(str(each.content), id=each.id, response_metadata={FROM_CLIENT: True}))
            case _:
                pass
    return made


def unanswered(held: Sequence[object], rest: Sequence[Message]) -> list[lc.BaseMessage]:
    """Results for calls in a state that have none and get none: of a run that was stopped, say."""
    answered = {each.tool_call_id for each in rest if isinstance(each, ToolMessage)}
    answered |= {each.tool_call_id for each in held if isinstance(each, lc.ToolMessage)}
    calls = [call for each in held if isinstance(each, lc.AIMessage) for call in each.tool_calls]
    return [
        lc.ToolMessage(NOT_MADE, tool_call_id=str(call["id"]), name=call["name"], status="error")
        for call in calls
        if call["id"] not in answered
    ]


def to_messages(messages: Sequence[lc.BaseMessage], new_id: Any) -> list[Message]:
    """A framework's messages for our prompt builder. new_id: a prefix → an id, for messages that have none."""
    return [_message(each, each.id or new_id("msg")) for each in messages]


def _message(message: lc.BaseMessage, id: str) -> Message:
    text = message.text
    match message:
        case lc.SystemMessage():
            return SystemMessage(id=id, content=text)
        case lc.AIMessage():
            calls = [
                ToolCall(
                    id=str(call["id"]),
                    function=FunctionCall(name=call["name"], arguments=msgspec.json.encode(call["args"]).decode()),
                )
                for call in message.tool_calls
            ]
            return AssistantMessage(id=id, content=text or None, tool_calls=calls or None)
        case lc.ToolMessage():
            return ToolMessage(id=id, content=text, tool_call_id=message.tool_call_id)
        case _:
            return UserMessage(id=id, content=text)


def _call(call: ToolCall) -> lc.ToolCall:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = {}
    return lc.ToolCall(
        name=call.function.name, args=arguments if isinstance(arguments, dict) else {}, id=call.id, type="tool_call"
    )


def content_of(content: Any) -> Any:
    """Text as it is; parts as LangChain's standard blocks."""
    if isinstance(content, str):
        return content
    return [_block(part.model_dump(mode="json", by_alias=True)) for part in content]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    source, kind = part["source"], "file" if part["type"] == "document" else part["type"]
    mime = {"mime_type": source["mimeType"]} if source.get("mimeType") else {}
    place = {"data": "base64", "url": "url", "file": "file_id"}[source["type"]]
    return {"type": kind, place: source["value"], **mime}
