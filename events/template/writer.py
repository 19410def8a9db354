"""Write reasoning, content and calls in an OutputFormat, as the model would write them.

Used for templates that do not render calls of the history (LFM2), for the prefill of a message that is continued, and
for the examples of `agent-server inspect`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from events.formats import layout
from events.formats.output_format import Arguments, OutputFormat, Tools


class WrittenCall(msgspec.Struct, frozen=True):
    """A call to be written; arguments as an object."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


def write(
    output_format: OutputFormat, *, reasoning: str = "", content: str = "", calls: Sequence[WrittenCall] = ()
) -> str:
    """Return the text of one assistant message, without header and end of turn. Calls are left out if the format does
    not support them."""
    if channels := output_format.channels:
        # Messages with headers. A format with two starts begins a message with the first, whose header names the role,
        # and a channel with the second (`<|start|>assistant<|channel|>final<|message|>`); the prompt contains the
        # beginning of the first header.
        opening = output_format.message_start if len(channels.start) > 1 else ""
        headers: dict[str, str] = {route.to: route.header for route in reversed(channels.routes)}
        opens, closes = channels.start[-1], channels.header_end[0]
        messages: list[str] = []
        for to, text in (("reasoning", reasoning), ("content", content)):
            if text and to in headers:
                # A route's header may already contain its start and end markers.
                header = headers[to] if headers[to].startswith(opens) else opens + headers[to]
                header = header if header.endswith(closes) else header + closes
                messages.append(header + text + "".join(channels.end[:1]))
        for call in calls:
            name, arguments = f"{channels.namespace}{call.name}", _json(call.arguments)
            if len(channels.start) == 1:
                messages.append(f"{opens}{name}{closes}{arguments}")
            else:
                channel = opens + (channels.routes[-1].header if channels.routes else "")
                end = "".join(channels.end[1:2])
                messages.append(f" {channels.recipient}{name}{channel} json{closes}{arguments}{end}")
        return opening.join(messages)
    wraps = {"always": True, "with_reasoning": bool(reasoning), "with_calls": bool(calls)}
    wrapped = wraps[output_format.content.wrapped]
    parts = [write_reasoning(output_format, reasoning), write_content(output_format, content, wrapped)]
    if calls and output_format.tools:
        parts.append(write_calls(output_format.tools, calls))
    return "".join(parts)


def write_reasoning(output_format: OutputFormat, text: str) -> str:
    """Return a complete block of reasoning; "" for none."""
    described = output_format.reasoning
    if not text or described is None:
        return ""
    return (described.start[0] if described.start else "") + text + described.end[0]


def write_content(output_format: OutputFormat, text: str, wrapped: bool) -> str:
    described = output_format.content
    if not text or not described.start or not wrapped:
        return text
    return described.start[0] + text + (described.end[0] if described.end else "")


def write_calls(tools: Tools, calls: Sequence[WrittenCall]) -> str:
    """Return all calls with the section's markers."""
    around = layout.section(tools)
    write_one = _json_call if tools.style == "json" else _tag_call
    texts = [tools.call_start + write_one(tools, call, index) + tools.call_end for index, call in enumerate(calls)]
    if around.repeats:
        return "".join(around.start + text + around.end for text in texts)
    return around.start + around.separator.join(texts) + around.end


def _json_call(tools: Tools, call: WrittenCall, index: int) -> str:
    keys = tools.json
    if keys.name_is_key:
        return _json({call.name: call.arguments})
    members: dict[str, object] = {keys.name: call.name, keys.arguments: call.arguments}
    if keys.wrapper:
        members = {"type": keys.wrapper, keys.wrapper: members}
    number: dict[str, object] = {keys.id: call.id or str(index)} if keys.id else {}
    return _json({**number, **members} if keys.id_first else {**members, **number})


def _tag_call(tools: Tools, call: WrittenCall, index: int) -> str:
    fill = {
        "name": escape(call.name) if tools.name_entities else call.name,
        "id": call.id or str(index),
        "index": str(index),
        "arguments": _arguments(tools.arguments, call.arguments),
    }
    return _filled(layout.tag_call(tools), fill)


def _filled(items: Sequence[layout.Item], fill: Mapping[str, str]) -> str:
    """Return the items as text, with each slot replaced by its text in `fill`."""
    return "".join(item.text if isinstance(item, layout.Text) else fill[item.holds] for item in items)


def _arguments(style: Arguments, arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments without the markers around them."""
    if style.style == "json":
        return _json(arguments)
    pieces: list[str] = []
    for key, value in arguments.items():
        match style.style:
            case "tagged":
                text = value if isinstance(value, str) else _json(value)
                fill = {"key": key, "type": _type_word(style, value), "value": text}
                pieces.append(_filled((*layout.argument_head(style), *layout.argument_value(style)), fill))
            case "python":
                pieces.append(f"{key}={_literal(value)}")
            case "object":
                pieces.append(f"{key}:{_bare(style, value)}")
            case "nested":
                pieces.append(_nested(style, key, value))
    separator = style.separator or (", " if style.style in ("python", "object") else "")
    return separator.join(pieces)


def _type_word(style: Arguments, value: object) -> str:
    if style.type_words == "is_string":
        return "true" if isinstance(value, str) else "false"
    kinds = (
        (bool, "boolean"),
        (str, "string"),
        ((int, float), "number"),
        (Mapping, "object"),
        ((list, tuple), "array"),
    )
    return "null" if value is None else next(name for kind, name in kinds if isinstance(value, kind))


def _literal(value: object) -> str:
    """Return a Python literal with JSON's string quoting, as models of this style write it."""
    if isinstance(value, str):
        return _json(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return repr(value)


def _bare(style: Arguments, value: object) -> str:
    if isinstance(value, str):
        return style.quote + value + style.quote if style.quote else _json(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_bare(style, item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_bare(style, item) for item in value) + "]"
    return _json(value)


def _nested(style: Arguments, key: str, value: object) -> str:
    opening, closing = layout.element(style, key)
    if isinstance(value, Mapping):
        inner = "".join(_nested(style, each, item) for each, item in value.items())
    elif isinstance(value, (list, tuple)):
        inner = "".join(_nested(style, style.item, item) for item in value)
    else:
        inner = value if isinstance(value, str) else _json(value)
    return opening + inner + closing


def writes_reasoning(output_format: OutputFormat) -> bool:
    """Return whether the format supports reasoning."""
    routes = output_format.channels.routes if output_format.channels else ()
    return output_format.reasoning is not None or any(route.to == "reasoning" for route in routes)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
