"""An OutputFormat read the other way: reasoning, content and calls written as the model would write them.

Used where a template does not render calls of the history (LFM2), for the prefill of a message that is continued, and
by the inspector's examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from events.formats.output_format import Arguments, Channels, OutputFormat, Tools


class WrittenCall(msgspec.Struct, frozen=True):
    """A call to be written; arguments as an object."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


def write(
    output_format: OutputFormat, *, reasoning: str = "", content: str = "", calls: Sequence[WrittenCall] = ()
) -> str:
    """The text of one assistant message, without header and end of turn. Calls are left out where the format has no
    way of writing them."""
    if output_format.channels:
        return _write_channels(output_format, output_format.channels, reasoning, content, calls)
    parts = [write_reasoning(output_format, reasoning), write_content(output_format, content, bool(reasoning))]
    if calls and output_format.tools:
        parts.append(write_calls(output_format.tools, calls))
    return "".join(parts)


def write_reasoning(output_format: OutputFormat, text: str) -> str:
    """A whole block of reasoning, "" for none."""
    described = output_format.reasoning
    if not text or described is None:
        return ""
    return (described.start[0] if described.start else "") + text + described.end[0]


def write_content(output_format: OutputFormat, text: str, after_reasoning: bool) -> str:
    described = output_format.content
    if not text or not described.start or (described.wrapped == "with_reasoning" and not after_reasoning):
        return text
    return described.start[0] + text + (described.end[0] if described.end else "")


def write_calls(tools: Tools, calls: Sequence[WrittenCall]) -> str:
    """All calls with what surrounds them."""
    written = [_write_call(tools, call, index) for index, call in enumerate(calls)]
    if tools.style == "json" and tools.json.array:
        start = tools.section_start if tools.section_start.rstrip().endswith("[") else tools.section_start + "["
        end = tools.section_end if tools.section_end.lstrip().startswith("]") else "]" + tools.section_end
        return start + (tools.call_separator or ", ").join(written) + end
    wrapped = [tools.call_start + text + tools.call_end for text in written]
    if tools.repeats_section:
        return tools.call_separator.join(tools.section_start + text + tools.section_end for text in wrapped)
    separator = tools.call_separator or ("" if tools.section_start or tools.call_start or tools.name_prefix else "\n")
    return tools.section_start + separator.join(wrapped) + tools.section_end


def _write_call(tools: Tools, call: WrittenCall, index: int) -> str:
    return _json_call(tools, call, index) if tools.style == "json" else _tag_call(tools, call, index)


def _json_call(tools: Tools, call: WrittenCall, index: int) -> str:
    keys = tools.json
    if keys.name_is_key:
        return _json({call.name: call.arguments})
    inner: dict[str, Any] = {keys.name: call.name, keys.arguments: call.arguments}
    if keys.id:
        inner[keys.id] = call.id or str(index)
    return _json({"type": keys.wrapper, keys.wrapper: inner} if keys.wrapper else inner)


def _tag_call(tools: Tools, call: WrittenCall, index: int) -> str:
    number = str(index)
    identifier = tools.id.prefix + (call.id or number) + tools.id.suffix
    before = identifier if tools.id.position == "before_name" else ""
    between = identifier if tools.id.position == "between" else ""
    behind = identifier if tools.id.position == "after_arguments" else ""
    suffix = tools.name_suffix.replace("{index}", number)
    written = write_arguments(tools.arguments, call.arguments)
    return f"{before}{tools.name_prefix}{call.name}{between}{suffix}{written}{behind}"


def write_arguments(style: Arguments, arguments: Mapping[str, Any]) -> str:
    """A call's arguments with the markers around all of them."""
    if style.style == "json":
        return style.start + _json(arguments) + style.end
    writers = {"tagged": _tagged, "python": _python, "object": _object, "nested": _nested}
    pieces = [writers[style.style](style, key, value) for key, value in arguments.items()]
    separator = style.separator or (", " if style.style in ("python", "object") else "")
    return style.start + separator.join(pieces) + style.end


def _tagged(style: Arguments, key: str, value: Any) -> str:
    declared = "true" if isinstance(value, str) else "false"
    kind = style.type_prefix + declared + style.type_suffix if style.type_prefix else ""
    text = value if isinstance(value, str) else _json(value)
    return f"{style.name_prefix}{key}{style.name_suffix}{kind}{style.value_prefix}{text}{style.value_suffix}"


def _python(style: Arguments, key: str, value: Any) -> str:
    return f"{key}={_literal(value)}"


def _literal(value: Any) -> str:
    """Python's spelling with JSON's string quoting, as the models of this style write it."""
    if isinstance(value, str):
        return _json(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


def _object(style: Arguments, key: str, value: Any) -> str:
    return f"{key}:{_bare(style, value)}"


def _bare(style: Arguments, value: Any) -> str:
    if isinstance(value, str):
        return style.quote + value + style.quote if style.quote else _json(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_bare(style, item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_bare(style, item) for item in value) + "]"
    return _json(value)


def _nested(style: Arguments, key: str, value: Any) -> str:
    inner = _nested_value(style, value)
    return f"{style.element_prefix}<{key}>{inner}{style.element_prefix}</{key}>"


def _nested_value(style: Arguments, value: Any) -> str:
    if isinstance(value, Mapping):
        return "".join(_nested(style, key, item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "".join(_nested(style, style.item, item) for item in value)
    return value if isinstance(value, str) else _json(value)


def _write_channels(
    output_format: OutputFormat, channels: Channels, reasoning: str, content: str, calls: Sequence[WrittenCall]
) -> str:
    """Messages with headers, one after the other. A format with two starts begins a message with the first, whose
    header names the role, and a channel with the second (`<|start|>assistant<|channel|>final<|message|>`); the prompt
    holds the first header's beginning."""
    opening = output_format.message_start if len(channels.start) > 1 else ""
    headers: dict[str, str] = {route.to: route.header for route in reversed(channels.routes)}
    texts = (("reasoning", reasoning), ("content", content))
    messages = [(headers[to], text, channels.end[:1]) for to, text in texts if text and to in headers]
    parts = [f"{_header(channels, header)}{body}{''.join(end)}" for header, body, end in messages]
    parts += [_channel_call(channels, call) for call in calls]
    return opening.join(parts)


def _header(channels: Channels, header: str) -> str:
    """A route's header between the marks that begin and end it, which it may hold itself."""
    begun = header if header.startswith(channels.start[-1]) else channels.start[-1] + header
    return begun if begun.endswith(channels.header_end[0]) else begun + channels.header_end[0]


def writes_reasoning(output_format: OutputFormat) -> bool:
    """Whether the format has a way of writing reasoning."""
    routes = output_format.channels.routes if output_format.channels else ()
    return output_format.reasoning is not None or any(route.to == "reasoning" for route in routes)


def _channel_call(channels: Channels, call: WrittenCall) -> str:
    name = f"{channels.namespace}{call.name}"
    end = "".join(channels.end[1:2]) if len(channels.start) > 1 else ""
    if len(channels.start) == 1:
        return f"{channels.start[0]}{name}{channels.header_end[0]}{_json(call.arguments)}{end}"
    channel = channels.start[-1] + (channels.routes[-1].header if channels.routes else "")
    return f" {channels.recipient}{name}{channel} json{channels.header_end[0]}{_json(call.arguments)}{end}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
