"""The input items of a Responses request → AG-UI messages.

A turn of the model is a series of items (reasoning, message, function calls). Here it becomes one assistant message,
with its reasoning before it, in the order in which the model wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from ag_ui.core import (
    AssistantMessage,
    ContentPart,
    DeveloperMessage,
    FunctionCall,
    Message,
    ReasoningMessage,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

from adapters.body import KINDS, Limits, current_turn_start, notes_of_request, wrong
from adapters.client_history import NewId, PlacedMessage, object_text, unwrap
from adapters.openai_chat import read_part
from adapters.openai_responses.client_tools import HOSTED_ITEMS, call_of, joined_name, output_of
from adapters.request_tools import arguments_of
from adapters.sse import json_bytes

Items = Mapping[str, Mapping[str, object]]
"""Items of stored responses by their ids."""
MAX_REFERENCES = 256
COMPACTION = "cmp"
"""Prefix of the ids of compaction items, and of the messages that represent them."""
APPROVAL_PREFIX = "mcpr_"
"""Prefix of the ids of approval requests; the rest is the interrupt's id."""
SUMMARY_QUESTION = "Summarise our conversation so far."
TRIGGER = "compaction_trigger"
"""The type of the item that requests a compaction instead of an answer."""
OpenSeal = Callable[[str], str | list[Message] | None]
"""Decrypts a compaction item's `encrypted_content`: a summary, or the messages that replace all before the item; None
if it was not sealed by this server for this tenant."""


def no_seals(_: str) -> None:
    """The `OpenSeal` of a server without keys."""
    return None


class _Reference(msgspec.Struct):
    type: Any = None
    id: Any = None


class _References(msgspec.Struct):
    input: list[_Reference]


def referenced(body: bytes) -> list[str]:
    """Return the ids of the items that a request refers to, without validating the rest of the body.

    An invalid body has none and is refused when it is read. Raises RequestError for more than MAX_REFERENCES.
    """
    if b"item_reference" not in body:
        return []
    try:
        items = msgspec.json.decode(body, type=_References).input
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    ids = [item.id for item in items if item.type == "item_reference" and isinstance(item.id, str)]
    if len(ids) > MAX_REFERENCES:
        raise wrong("input", f"must refer to at most {MAX_REFERENCES} items")
    return ids


def response_of(item_id: str) -> str | None:
    """Return the id of the response that contains an output item (`rs_..._0`) or an input item (`..._in_0`)."""
    if match := _OUTPUT_ITEM.fullmatch(item_id):
        return f"resp_{match[1]}"
    match = _INPUT_ITEM.fullmatch(item_id)
    return match[1] if match else None


_OUTPUT_ITEM = re.compile(r"(?:msg|rs|fc|ctc|cmp|lsh|sh|apc|tsc|mcpl|mcp|ws)_(\w{1,80})_\d{1,6}")
_INPUT_ITEM = re.compile(r"(resp_\w{1,80})_in_\d{1,6}")


def read_input(
    value: object,
    *,
    new_id: NewId,
    limits: Limits,
    media: Collection[str] = (),
    items: Items = MappingProxyType({}),
    before: Sequence[Mapping[str, object]] = (),
    open_seal: OpenSeal = no_seals,
    deferred: Mapping[str, Tool] = MappingProxyType({}),
) -> list[PlacedMessage]:
    """Convert `input` to messages with their positions. Raises RequestError("invalid_request"), which names the item.

    items: the items that it may refer to. before: the items of the conversation that it continues. open_seal: reads
    compaction items. deferred: the tools that the results of searches describe.
    """
    if isinstance(value, str) and before:
        value = [{"role": "user", "content": value}]
    if isinstance(value, str):
        return [PlacedMessage(UserMessage(id=new_id("msg"), content=value), "input")]
    if not isinstance(value, list) or not value:
        raise wrong("input", "must be text or an array of items")
    if len(value) > limits.messages:
        raise wrong("input", f"must have at most {limits.messages} items")
    if value[-1:] and isinstance(value[-1], dict) and value[-1].get("type") == TRIGGER:
        value = value[:-1]
    turn_start = current_turn_start(_role(item) for item in value)
    reader = _ItemsReader(new_id, limits, items, open_seal, deferred)
    for item in before:
        reader.read(dict(item), "conversation", KINDS)
    for index, item in enumerate(value):
        reader.read(item, f"input.{index}", media if index >= turn_start else KINDS)
    return reader.messages


def _role(item: object) -> str:
    """Return an item's role: "assistant" for every item that a model wrote."""
    if not isinstance(item, dict):
        return ""
    by_model = item.get("type") in ("function_call", "custom_tool_call", "reasoning") or call_of(item) is not None
    return "assistant" if by_model else str(item.get("role"))


class _ItemsReader:
    """Converts items one by one into `messages`. `_turn` is the assistant message to which the next calls belong."""

    def __init__(
        self, new_id: NewId, limits: Limits, items: Items, open_seal: OpenSeal, deferred: Mapping[str, Tool]
    ) -> None:
        self._items = items
        self._deferred = deferred
        self._open_seal = open_seal
        self.messages: list[PlacedMessage] = []
        self._new_id = new_id
        self._limits = limits
        self._media: Collection[str] = ()
        self._turn: AssistantMessage | None = None

    def read(self, item: object, at: str, media: Collection[str]) -> None:
        """Convert one item. media: kinds of content that are accepted in a user message."""
        self._media = media
        if not isinstance(item, dict):
            raise wrong(at, "must be an object")
        if not isinstance(item.get("id") or "", str):
            raise wrong(f"{at}.id", "must be a string")
        kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
        match kind:
            case "message":
                self._message(item, at)
            case "function_call":
                self._call(item, at)
            case "custom_tool_call":
                text = arguments_of(item.get("input"), f"{at}.input")
                self._call({**item, "arguments": text}, at)
            case "function_call_output" | "custom_tool_call_output":
                self._add(self._output(item, at), at)
            case "reasoning":
                sealed = item.get("encrypted_content")
                if sealed is not None and not isinstance(sealed, str):
                    raise wrong(f"{at}.encrypted_content", "must be a string")
                seal = unwrap(sealed) if sealed else None
                reasoning = ReasoningMessage(
                    id=seal.message_id if seal else self._id(item),
                    content=self._joined_text(item.get("content"), f"{at}.content")
                    or self._joined_text(item.get("summary"), f"{at}.summary"),
                    encrypted_value=seal.value if seal else sealed or None,
                )
                self._add(reasoning, at)
            case "compaction":
                self._compaction(item, at)
            case "compaction_trigger":
                raise wrong(at, "must be the last item")
            case "item_reference" if str(item.get("id")).startswith(APPROVAL_PREFIX):
                pass  # as the approval request itself
            case "item_reference":
                stored_item = self._items.get(str(item.get("id")))
                if stored_item is None or stored_item.get("type") == "item_reference":
                    raise wrong(at, "refers to no item of a stored response; send the complete item")
                self.read(dict(stored_item), at, KINDS)
            case "additional_tools" | "configuration_update":
                pass  # read with the request's options
            case "tool_search_call" | "tool_search_output" if item.get("call_id") is None:
                pass  # a search by OpenAI's service; its tools are read with the request's
            case "mcp_list_tools" | "mcp_approval_request" | "mcp_approval_response":
                pass  # servers are asked for their tools again; approvals are read with the request's options
            case str(kind) if kind in HOSTED_ITEMS:
                notes_of_request().warn(f"{at} is left out: this server reads no {kind} items.")
            case str():
                self._client_tool(item, at)
            case _:
                raise wrong(f"{at}.type", "is required")

    def _client_tool(self, item: dict[str, Any], at: str) -> None:
        """Convert the call or the result of a tool that the client runs. An unknown type is omitted with a warning, as
        items of OpenAI's own tools are, since an error would make the conversation unusable."""
        if (call := call_of(item)) is not None:
            name, arguments = call
            self._call({**item, "name": name, "arguments": arguments}, at)
            if item["type"] == "mcp_call":  # it includes its result
                output = item.get("output") if item.get("error") is None else item["error"]
                text = output if isinstance(output, str) else json_bytes(output).decode()
                self._add(self._output({"call_id": item.get("id"), "output": text}, at), at)
        elif (result := output_of(item, self._deferred)) is not None:
            call_id, output = result
            self._add(self._output({"call_id": call_id, "output": output}, at), at)
        else:
            notes_of_request().warn(f"{at} is left out: its type is not known here.")

    def _add(self, message: Message, at: str) -> None:
        self.messages.append(PlacedMessage(message, at))
        self._turn = message if isinstance(message, AssistantMessage) else None

    def _message(self, item: dict[str, Any], at: str) -> None:
        role, content = item.get("role"), item.get("content")
        match role:
            case "user":
                self._add(UserMessage(id=self._id(item), content=self._content(content, at, self._media)), at)
            case "system":
                self._add(SystemMessage(id=self._id(item), content=self._text(content, at)), at)
            case "developer":
                self._add(DeveloperMessage(id=self._id(item), content=self._text(content, at)), at)
            case "assistant":
                self._add(AssistantMessage(id=self._id(item), content=self._text(content, at)), at)
            case _:
                raise wrong(f"{at}.role", "must be user, assistant, system or developer")

    def _call(self, item: dict[str, Any], at: str) -> None:
        name = joined_name(item.get("namespace"), self._name(item.get("name"), f"{at}.name"))
        call_id = self._name(item.get("call_id") or item.get("id"), f"{at}.call_id")
        arguments = object_text(item.get("arguments"), f"{at}.arguments")
        call = ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))
        if self._turn is None:
            self._add(AssistantMessage(id=self._new_id("msg"), tool_calls=[]), at)
        assert self._turn is not None
        self._turn.tool_calls = [*(self._turn.tool_calls or []), call]
        if len(self._turn.tool_calls) > self._limits.tool_calls:
            raise wrong(at, f"exceeds the limit of {self._limits.tool_calls} calls in one turn")

    def _output(self, item: dict[str, object], at: str) -> ToolMessage:
        call_id = self._name(item.get("call_id"), f"{at}.call_id")
        content = self._content(item.get("output"), at, KINDS, "output")
        return ToolMessage(id=self._new_id("msg"), tool_call_id=call_id, content=content)

    def _compaction(self, item: dict[str, object], at: str) -> None:
        """Convert a summary to a question and its answer, so that user and assistant messages still alternate. It is
        never an instruction, since it contains what users wrote."""
        sealed = item.get("encrypted_content")
        content = self._open_seal(sealed) if isinstance(sealed, str) else None
        if content is None:
            message = "was not made by this server for this key, or before its encryption key changed"
            raise wrong(f"{at}.encrypted_content", f"{message}; send the conversation itself")
        if isinstance(content, str):
            id = self._new_id(COMPACTION)
            self._add(UserMessage(id=f"{id}_asked", content=SUMMARY_QUESTION), at)
            self._add(AssistantMessage(id=f"{id}_summary", content=content), at)
        else:  # clients may or may not send the earlier items too
            self.messages = [PlacedMessage(message, at) for message in content]
        self._turn = None  # calls that follow are no part of the summary

    def _joined_text(self, parts: object, at: str) -> str:
        if parts is None:
            return ""
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
        ):
            raise wrong(at, "must be an array of texts")
        return "\n".join(part["text"] for part in parts)

    def _id(self, item: dict[str, object]) -> str:
        """Return the item's own id, or a new one if it has none."""
        item_id = item.get("id")
        return item_id if isinstance(item_id, str) and 0 < len(item_id) <= self._limits.name else self._new_id("msg")

    def _name(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= self._limits.name:
            raise wrong(at, f"must be a string of 1 to {self._limits.name} characters")
        return value

    def _text(self, content: Any, at: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, "content", ())
        return "".join(part.text for part in parts if isinstance(part, TextPart))

    def _content(
        self, content: object, at: str, media: Collection[str], field: str = "content"
    ) -> str | list[ContentPart]:
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, field, media)
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else parts

    def _parts(self, content: object, at: str, field: str, media: Collection[str]) -> list[ContentPart]:
        if not isinstance(content, list) or len(content) > self._limits.parts:
            raise wrong(f"{at}.{field}", f"must be a string or an array of at most {self._limits.parts} parts")
        return [read_part(part, f"{at}.{field}.{i}", media) for i, part in enumerate(content)]


def sealed_thread(value: object) -> str | None:
    """Return the thread of the last sealed reasoning item in the input."""
    items: Sequence[object] = value if isinstance(value, list) else ()
    seals = (item.get("encrypted_content") for item in items if isinstance(item, dict))
    unwrapped = [seal for text in seals if isinstance(text, str) and (seal := unwrap(text)) is not None]
    return unwrapped[-1].thread_id if unwrapped else None
