"""Chat Completions messages → AG-UI messages, with repairs of common and harmless mistakes of clients.

Repaired: null and missing content, parts where text is expected, roles in capitals, missing or repeated call ids,
arguments that are an object, empty or cut off, results out of order, the deprecated `function` role. Anything else
that is invalid raises a RequestError that names the message. Unknown fields of a message are ignored without a warning,
since clients send back whole answers with the fields that another server added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
from ag_ui.core import (
    AssistantMessage,
    AudioPart,
    ContentPart,
    DataSource,
    DeveloperMessage,
    DocumentPart,
    FileSource,
    FunctionCall,
    ImagePart,
    Message,
    PartSource,
    ReasoningMessage,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
    VideoPart,
)

from adapters.body import KINDS, Limits, current_turn_start, unsupported_part, wrong
from adapters.client_history import NewId, Placed, object_text, put_in_order
from adapters.request_tools import arguments_of


class ChatMessage(msgspec.Struct):
    """One message of the request; only `role` is required."""

    role: str
    content: Any = None
    name: Any = None
    tool_calls: object = None
    tool_call_id: Any = None
    function_call: object = None
    reasoning: Any = None
    reasoning_content: object = None
    refusal: object = None
    audio: object = None


def read_messages(
    messages: Sequence[ChatMessage], *, new_id: NewId, limits: Limits, media: Collection[str] = ()
) -> list[Message]:
    """Convert the messages of a request. Raises RequestError("invalid_request") with the message's position.

    media: kinds of content besides text that the model reads: "image", "audio", "video", "document".
    """
    if not messages:
        raise wrong("messages", "must not be empty")
    if len(messages) > limits.messages:
        raise wrong("messages", f"must have at most {limits.messages} items")
    turn_start = current_turn_start(message.role.strip().lower() for message in messages)
    reader = _ChatMessagesReader(new_id, limits)
    placed = [
        Placed(result, f"messages.{i}")
        for i, message in enumerate(messages)
        for result in reader.read(message, f"messages.{i}", media if i >= turn_start else KINDS)
    ]
    return put_in_order(placed, new_id)


class _ChatMessagesReader:
    """Keeps the calls that have no result yet, to assign one to a result without a call id."""

    def __init__(self, new_id: NewId, limits: Limits) -> None:
        self._new_id = new_id
        self._limits = limits
        self._media: Collection[str] = ()
        self._waiting: list[tuple[str, str]] = []

    def read(self, message: ChatMessage, at: str, media: Collection[str]) -> Iterable[Message]:
        """Convert one message. media: kinds of content that are accepted in a user message."""
        self._media = media
        readers: dict[str, Callable[[ChatMessage, str], Iterable[Message]]] = {
            "system": self._system,
            "developer": self._developer,
            "user": self._user,
            "assistant": self._assistant,
            "tool": self._tool,
            "function": self._function,
        }
        read = readers.get(message.role.strip().lower())
        if read is None:
            raise wrong(f"{at}.role", f"must be one of {', '.join(readers)}")
        return read(message, at)

    def _system(self, message: ChatMessage, at: str) -> Iterable[Message]:
        text = self._text(message.content, at)
        yield SystemMessage(id=self._new_id("msg"), content=text, name=self._name(message, at))

    def _developer(self, message: ChatMessage, at: str) -> Iterable[Message]:
        text = self._text(message.content, at)
        yield DeveloperMessage(id=self._new_id("msg"), content=text, name=self._name(message, at))

    def _user(self, message: ChatMessage, at: str) -> Iterable[Message]:
        content = self._content(message.content, at, self._media)
        yield UserMessage(id=self._new_id("msg"), content=content, name=self._name(message, at))

    def _assistant(self, message: ChatMessage, at: str) -> Iterable[Message]:
        if message.audio is not None:
            raise wrong(f"{at}.audio", "is not supported: this server stores no audio answers")
        if reasoning := self._reasoning(message, at):
            yield ReasoningMessage(id=self._new_id("rsn"), content=reasoning)
        entries = message.tool_calls or []
        if not isinstance(entries, list) or len(entries) > self._limits.tool_calls:
            raise wrong(f"{at}.tool_calls", f"must be an array of at most {self._limits.tool_calls} items")
        if message.function_call:
            entries = [*entries, {"function": message.function_call}]
        calls = [self._call(entry, f"{at}.tool_calls.{i}") for i, entry in enumerate(entries)]
        self._waiting.extend((call.id, call.function.name) for call in calls)
        text = self._text(message.content, at) or self._text(message.refusal, f"{at}.refusal")
        yield AssistantMessage(
            id=self._new_id("msg"),
            content=text if text or not calls else None,
            tool_calls=calls or None,
            name=self._name(message, at),
        )

    def _reasoning(self, message: ChatMessage, at: str) -> str:
        for name in ("reasoning", "reasoning_content"):
            value = getattr(message, name)
            if value is not None and not isinstance(value, str):
                raise wrong(f"{at}.{name}", "must be a string")
            if value:
                return str(value)
        return ""

    def _call(self, entry: Any, at: str) -> ToolCall:
        kind = "custom" if isinstance(entry, dict) and "custom" in entry else "function"
        function = entry.get(kind) if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            raise wrong(at, "must have a function")
        name = function.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= self._limits.name:
            raise wrong(f"{at}.{kind}.name", "must be a name")
        if kind == "custom":
            arguments = arguments_of(function.get("input"), f"{at}.custom.input")
        else:
            arguments = object_text(function.get("arguments"), f"{at}.function.arguments")
        call_id = self._id(entry.get("id"), f"{at}.id") or self._new_id("call")
        return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))

    def _tool(self, message: ChatMessage, at: str) -> Iterable[Message]:
        call_id = self._id(message.tool_call_id, f"{at}.tool_call_id")
        if not call_id:
            if len(self._waiting) != 1:
                raise wrong(f"{at}.tool_call_id", "must say which call this result answers")
            call_id = self._waiting[0][0]
        yield self._result(message, call_id, at)

    def _function(self, message: ChatMessage, at: str) -> Iterable[Message]:
        call_id = next((call for call, name in self._waiting if name == message.name), None)
        if call_id is None:
            raise wrong(at, "answers a function that no message called")
        yield self._result(message, call_id, at)

    def _result(self, message: ChatMessage, call_id: str, at: str) -> ToolMessage:
        self._waiting = [entry for entry in self._waiting if entry[0] != call_id]
        return ToolMessage(
            id=self._new_id("msg"), tool_call_id=call_id, content=self._content(message.content, at, KINDS)
        )

    def _id(self, value: object, at: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > self._limits.name:
            raise wrong(at, f"must be a string of at most {self._limits.name} characters")
        return value

    def _name(self, message: ChatMessage, at: str) -> str | None:
        return self._id(message.name, f"{at}.name") or None

    def _text(self, content: object, at: str) -> str:
        """Read the content of a role that allows only text; several parts become lines."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, media=())
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))

    def _content(self, content: object, at: str, media: Collection[str]) -> str | list[ContentPart]:
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, media=media)
        if len(parts) == 1 and isinstance(parts[0], TextPart):
            return parts[0].text
        return parts

    def _parts(self, content: object, at: str, *, media: Collection[str]) -> list[ContentPart]:
        if isinstance(content, dict):
            content = [content]
        if not isinstance(content, list) or len(content) > self._limits.parts:
            raise wrong(f"{at}.content", f"must be a string or an array of at most {self._limits.parts} parts")
        return [read_part(part, f"{at}.content.{i}", media) for i, part in enumerate(content)]


def read_part(part: Any, at: str, media: Collection[str]) -> ContentPart:
    """Convert a content part of Chat Completions or Responses. Raises RequestError, also for a kind not in `media`."""
    if isinstance(part, str):
        return TextPart(text=part)
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "text" | "input_text" | "output_text" | "refusal":
            return TextPart(text=_string(part.get("refusal" if kind == "refusal" else "text"), at))
        case "image_url" | "input_image":
            _readable("image", media, at)
            return ImagePart(source=_source(part.get("image_url"), part.get("file_id"), "image/png", at))
        case "video_url":
            _readable("video", media, at)
            return VideoPart(source=_source(part.get("video_url"), None, "video/mp4", at))
        case "audio_url":
            _readable("audio", media, at)
            return AudioPart(source=_source(part.get("audio_url"), None, "audio/wav", at))
        case "input_audio":
            _readable("audio", media, at)
            return AudioPart(source=_audio(part.get("input_audio"), at))
        case "file" | "input_file":
            _readable("document", media, at)
            file = part.get("file") if kind == "file" else part
            file = file if isinstance(file, dict) else {}
            address = file.get("file_data") or file.get("file_url")
            source = _source(address, file.get("file_id"), "application/pdf", at)
            return DocumentPart(source=source, metadata=_filename(file.get("filename")))
    raise wrong(f"{at}.type", "is not a kind of content that this server knows")


def _readable(kind: str, media: Collection[str], at: str) -> None:
    if kind not in media:
        raise unsupported_part(kind, media, at)


def _filename(filename: object) -> dict[str, str] | None:
    """Return a document's name in the metadata field that AG-UI's clients use."""
    return {"filename": filename} if isinstance(filename, str) and filename else None


def _string(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise wrong(f"{at}.text", "must be a string")
    return value


def _source(address: object, file_id: object, mime: str, at: str) -> PartSource:
    """Read a data URL, a web address, bare base64 or the id of an uploaded file."""
    url = address.get("url") if isinstance(address, dict) else address
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return UrlSource(value=url)
    if isinstance(url, str) and url.startswith("data:"):
        head, comma, data = url[5:].partition(",")
        if comma and head.endswith(";base64"):
            return DataSource(value=data, mime_type=head.removesuffix(";base64").partition(";")[0] or mime)
    elif isinstance(url, str) and url:
        return DataSource(value=url, mime_type=mime)
    elif isinstance(file_id, str) and file_id:
        return FileSource(value=file_id)
    raise wrong(at, "must have a base64 data URL, a web address or a file id")


def _audio(value: object, at: str) -> DataSource:
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        raise wrong(f"{at}.input_audio", "must have base64 data")
    kind = value.get("format")
    return DataSource(value=value["data"], mime_type=f"audio/{kind if kind in ('wav', 'mp3', 'flac') else 'wav'}")
