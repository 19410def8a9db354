"""The turns of a Messages request, which are lists of content blocks → AG-UI messages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from ag_ui.core import (
    AssistantMessage,
    ContentPart,
    DataSource,
    DocumentPart,
    FileSource,
    FunctionCall,
    ImagePart,
    Message,
    PartSource,
    ReasoningMessage,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)

from adapters.body import KINDS, Limits, check_media, current_turn_start, notes_of_request, wrong
from adapters.client_history import NewId, PlacedMessage, object_text, put_in_order, unwrap
from adapters.request_tools import declarations_text
from events.options import SEPARATOR

DIGEST_PREFIX = "digest-1."


def digest(thinking: str) -> str:
    hashed = hashlib.sha256(thinking.encode("utf-8", "replace")).digest()
    return DIGEST_PREFIX + base64.b64encode(hashed).decode()


def is_digest(signature: str) -> bool:
    return signature.startswith(DIGEST_PREFIX)


TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Types of blocks that change the tools and have no content for the model."""
SERVICE_BLOCKS = (
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
    "advisor_tool_result", "mcp_", "container_upload", "browser_state", "fallback",
)  # fmt: skip
"""Prefixes of the types of blocks that tools of Anthropic's service leave in a conversation."""


class MessageParam(msgspec.Struct):
    """One entry of `messages`."""

    role: Literal["user", "assistant", "system"]
    content: Any = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Any = None


def read_turns(
    turns: Sequence[MessageParam],
    *,
    new_id: NewId,
    limits: Limits,
    media: Collection[str] = (),
    deferred: Mapping[str, Tool] = MappingProxyType({}),
) -> list[Message]:
    """Convert the messages of a request. Raises RequestError("invalid_request") with the block's position.

    deferred: the tools that are described where the conversation adds them, so that the prompt's beginning, with the
    declared tools, stays unchanged and cached.
    """
    if not turns:
        raise wrong("messages", "must not be empty")
    if len(turns) > limits.messages:
        raise wrong("messages", f"must have at most {limits.messages} items")
    turn_start = current_turn_start(turn.role for turn in turns)
    reader = _ContentReader(new_id, limits, deferred)
    placed: list[PlacedMessage] = []
    for i, turn in enumerate(turns):
        # A system message that applies to a single user turn is dropped when that turn has ended.
        if turn.clear_at == "next_user_message" and any(later.role == "user" for later in turns[i + 1 :]):
            continue
        at = f"messages.{i}"
        placed += [PlacedMessage(message, at) for message in reader.read(turn, at, media if i >= turn_start else KINDS)]
    if not placed:
        raise wrong("messages", "must contain more than changes of the tools")
    return put_in_order(placed, new_id, id_field="content.tool_use_id")


def system_text(value: object, at: str = "system") -> str:
    """Read a string, or text blocks, which become lines. Raises RequestError."""
    if value is None or isinstance(value, str):
        return value or ""
    blocks = [
        (block, f"{at}.{i}") for i, block in enumerate(_blocks(value, at)) if block.get("type") not in TOOL_CHANGES
    ]
    return "\n".join(_text(block, place) for block, place in blocks)


def _blocks(value: object, at: str, limit: int = 4096) -> list[dict[str, object]]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        raise wrong(at, "must be a string or an array of content blocks")
    if len(value) > limit:
        raise wrong(at, f"must have at most {limit} blocks")
    return value


def _text(block: dict[str, Any], at: str) -> str:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise wrong(at, "must be a text block")
    return str(block["text"])


class _ContentReader:
    def __init__(self, new_id: NewId, limits: Limits, deferred: Mapping[str, Tool]) -> None:
        self._new_id = new_id
        self._limits = limits
        self._deferred = deferred

    def read(self, turn: MessageParam, at: str, media: Collection[str]) -> Iterable[Message]:
        """Convert one turn. media: kinds of content that are accepted in a user turn."""
        changes = turn.content if isinstance(turn.content, list) else ()
        additions: list[str] = []
        for change in changes:
            tool = change.get("tool") if isinstance(change, dict) and change.get("type") == "tool_addition" else None
            named = tool.get("definition", tool) if isinstance(tool, dict) else None
            if isinstance(named, dict) and str(named.get("name")) in self._deferred:
                additions.append(self._addition(str(named["name"])))
        if turn.role == "system":
            text = system_text(turn.content, f"{at}.content")
            messages: list[Message] = []
            if text or not turn.content:
                messages.append(SystemMessage(id=self._new_id("msg"), content=text))
            if additions:  # not as a system message, since templates may have those only at the beginning
                messages.append(UserMessage(id=self._new_id("msg"), content="\n".join(additions)))
            return messages
        blocks = _blocks(turn.content, f"{at}.content", self._limits.parts)
        places = [
            (block, f"{at}.content.{i}") for i, block in enumerate(blocks) if block.get("type") not in TOOL_CHANGES
        ]
        if blocks and not places and not (additions and turn.role == "user"):
            return []
        if turn.role == "assistant":
            return self._assistant(places)
        results = [self._result(block, place) for block, place in places if block.get("type") == "tool_result"]
        parts = self._parts([each for each in places if each[0].get("type") != "tool_result"], media)
        parts += [TextPart(text=addition) for addition in additions]
        if parts or not results:
            return [*results, UserMessage(id=self._new_id("msg"), content=_simple(parts))]
        return results

    def _addition(self, name: str) -> str:
        """Return the text for a tool that can be called from here on."""
        tool = self._deferred.get(name)
        declaration = "." if tool is None else f":\n{declarations_text([tool])}"
        return f"The tool {name} can be called now{declaration}"

    def _result(self, block: dict[str, object], at: str) -> ToolMessage:
        call_id = self._name(block.get("tool_use_id"), f"{at}.tool_use_id")
        blocks = _blocks(block.get("content") or "", f"{at}.content", self._limits.parts)
        content = _simple(self._parts([(inner, f"{at}.content.{i}") for i, inner in enumerate(blocks)], KINDS))
        error = None
        if block.get("is_error") is True:
            error = content if isinstance(content, str) else "The tool failed."
        return ToolMessage(id=self._new_id("msg"), tool_call_id=call_id, content=content, error=error)

    def _assistant(self, blocks: list[tuple[dict[str, object], str]]) -> Iterable[Message]:
        texts: list[str] = []
        calls: list[ToolCall] = []
        results: list[ToolMessage] = []
        for block, at in blocks:
            if results and block.get("type") != "mcp_tool_result":  # the model wrote what follows after the results
                yield self._assistant_message(texts, calls, blocks[0][1])
                yield from results
                texts, calls, results = [], [], []
            match block.get("type"):
                case "mcp_tool_use":
                    name = f"{block.get('server_name')}{SEPARATOR}{block.get('name')}"
                    calls.append(self._call({**block, "name": name}, at))
                case "mcp_tool_result":
                    results.append(self._result(block, at))
                case "text":
                    texts.append(_text(block, at))
                case "thinking" | "redacted_thinking":
                    yield self._reasoning(block, at)
                case "tool_use":
                    calls.append(self._call(block, at))
                case "compaction":
                    texts.append(str(block.get("content") or ""))
                case str(kind) if kind.startswith(SERVICE_BLOCKS):
                    notes_of_request().warn(f"{at} is left out: this server reads no {kind} blocks.")
                case str(kind) if kind not in ("image", "document", "tool_result"):
                    notes_of_request().warn(f"{at} is left out: its type is not known here.")
                case _:
                    raise wrong(f"{at}.type", "must be text, thinking or tool_use in an assistant's message")
        yield self._assistant_message(texts, calls, blocks[0][1] if blocks else "messages")
        yield from results

    def _assistant_message(self, texts: list[str], calls: list[ToolCall], at: str) -> AssistantMessage:
        if len(calls) > self._limits.tool_calls:
            raise wrong(at, f"begins a message with more than {self._limits.tool_calls} calls")
        text = "".join(texts)
        return AssistantMessage(
            id=self._new_id("msg"), content=text if text or not calls else None, tool_calls=calls or None
        )

    def _reasoning(self, block: dict[str, object], at: str) -> ReasoningMessage:
        """Read a thinking block and its sealed value. Raises RequestError if its text was altered."""
        if block["type"] == "redacted_thinking":
            sealed = block.get("data")
            if not isinstance(sealed, str):
                raise wrong(f"{at}.data", "must be a string")
            return self._sealed_reasoning("", sealed)
        thinking, signature = block.get("thinking"), block.get("signature") or ""
        if not isinstance(thinking, str) or not isinstance(signature, str):
            raise wrong(at, "must have thinking and its signature")
        if not is_digest(signature):
            return self._sealed_reasoning(thinking, signature)
        if signature != digest(thinking):
            raise wrong(f"{at}.signature", "does not belong to this thinking: send blocks back unchanged")
        return ReasoningMessage(id=self._new_id("rsn"), content=thinking)

    def _sealed_reasoning(self, thinking: str, text: str) -> ReasoningMessage:
        """Return reasoning with its sealed value. A seal of another server cannot be opened and is dropped."""
        seal = unwrap(text)
        if seal is None:
            return ReasoningMessage(id=self._new_id("rsn"), content=thinking)
        return ReasoningMessage(id=seal.message_id, content=thinking, encrypted_value=seal.value)

    def _call(self, block: dict[str, Any], at: str) -> ToolCall:
        name = self._name(block.get("name"), f"{at}.name")
        call_id = self._name(block.get("id"), f"{at}.id")
        arguments = object_text(block.get("input"), f"{at}.input")
        return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))

    def _name(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= self._limits.name:
            raise wrong(at, f"must be a string of 1 to {self._limits.name} characters")
        return value

    def _parts(self, blocks: Iterable[tuple[dict[str, object], str]], media: Collection[str]) -> list[ContentPart]:
        parts: list[ContentPart] = []
        for block, at in blocks:
            title = block.get("title")
            match block:
                case {"type": "text"}:
                    parts.append(TextPart(text=_text(block, at)))
                case {"type": "image"}:
                    check_media("image", media, at)
                    parts.append(ImagePart(source=_source(block.get("source"), at)))
                case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                    parts.append(TextPart(text=f"{title}\n{text}" if isinstance(title, str) else text))
                case {"type": "document", "source": {"type": "content", **source}}:
                    inner = _blocks(source.get("content"), f"{at}.source.content", self._limits.parts)
                    parts += self._parts([(each, f"{at}.source.content.{i}") for i, each in enumerate(inner)], media)
                case {"type": "document"}:
                    check_media("document", media, at)
                    named = {"filename": title} if title else None
                    parts.append(DocumentPart(source=_source(block.get("source"), at), metadata=named))
                case {"type": "search_result"}:
                    text = system_text(block.get("content"), f"{at}.content")
                    parts.append(TextPart(text=f"{title} ({block.get('source')})\n{text}"))
                case {"type": "tool_reference"}:
                    parts.append(TextPart(text=self._addition(str(block.get("tool_name")))))
                case {"type": str(kind)} if kind.startswith(SERVICE_BLOCKS):
                    notes_of_request().warn(f"{at} is left out: this server reads no {kind} blocks.")
                case _:
                    raise wrong(f"{at}.type", "is not a kind of block that this server reads from users")
        return parts


def _simple(parts: list[ContentPart]) -> str | list[ContentPart]:
    """Return a single text part as a string, and other parts as they are."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts


def _source(source: object, at: str) -> PartSource:
    if isinstance(source, dict):
        data, mime = source.get("data"), source.get("media_type")
        if source.get("type") == "base64" and isinstance(data, str) and isinstance(mime, str):
            return DataSource(value=data, mime_type=mime)
        if source.get("type") == "url" and isinstance(source.get("url"), str):
            if not source["url"].startswith(("http://", "https://")):
                raise wrong(f"{at}.source.url", "must be a web address")
            return UrlSource(value=source["url"])
        if source.get("type") == "file" and isinstance(source.get("file_id"), str):
            return FileSource(value=source["file_id"])
    raise wrong(f"{at}.source", "must be base64 with a media_type, a url or a file")


def sealed_thread(turns: Sequence[MessageParam]) -> str | None:
    """Return the thread of the last sealed thinking block."""
    blocks = [block for turn in turns if isinstance(turn.content, list) for block in turn.content]
    texts = [block.get("signature") or block.get("data") for block in blocks if isinstance(block, dict)]
    seals = [seal for text in texts if isinstance(text, str) and (seal := unwrap(text)) is not None]
    return seals[-1].thread_id if seals else None
