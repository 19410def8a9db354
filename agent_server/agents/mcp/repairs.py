"""Repairs of MCP servers' messages, so that a mistake only affects the part that contains it.

The SDK validates a message as a whole and raises: one tool without `type: object` hides all tools of its server, and
one unknown content type or half a surrogate pair discards a result. This module repairs messages before the SDK reads
them, and records the repairs under keys of `_meta` that begin with `agent_server/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeVar

from mcp_types import Tool, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import BaseModel, ValidationError

from events.grammar.lint import SchemaRefused, prepare

Json = dict[str, object]
M = TypeVar("M", bound=BaseModel)
WARNINGS = "agent_server/warnings"
"""In a result's `_meta`: its problems."""
LEFT_OUT = "agent_server/leftOut"
"""In a listing's `_meta`: pairs of a tool's name and why it is not offered."""
OUTPUT_SCHEMA = "agent_server/outputSchema"
"""In a tool's `_meta`: the schema of its results. The SDK does not see it, since it raises for a mismatch."""
NOTE = "agent_server/note"
"""In a tool's `_meta`: how the offered tool differs from its server's declaration."""
TASK = "agent_server/task"
"""In a result's `_meta`: the task with which a server of 2025-11-25 answers a call instead of a result."""
BARE = "agent_server/bare"
"""The key of a result that is not an object."""
MESSAGE_BYTES = 16 * 2**20
"""The largest message of a server; a longer one is skipped, and its request fails."""
LOG_LINE = 500
"""The bytes that are logged of one line of a server."""
NAME_LENGTH = 128
DESCRIPTION_LENGTH = 16 * 2**10
SCHEMA_BYTES = 64 * 2**10
"""The largest schema of one tool; see OFFERED_BYTES of mcp_tools for the limit of a run."""
LOOSE_PROPERTIES = 200
"""The limit of arguments that are kept of a schema that cannot be used as it is."""
BLOCK_CHARACTERS = 64 * 2**10
"""The characters kept of a content block of an unknown type."""
MOST_COMPLETIONS = 100
"""MCP's own limit on the values that a server suggests for an argument."""
_HEX = rb"[0-9a-fA-F]"
_ESCAPE = re.compile(
    rb"\\\\|\\u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}|\\u[dD][89a-fA-F]" + _HEX + rb"{2}"
)
_ID = re.compile(rb'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{1,200})")\s*[,}]')


# ---- messages -------------------------------------------------------------------------------------------------------


def repair_message(data: bytes) -> bytes:
    """Repair a JSON-RPC message for the SDK: U+FFFD for invalid Unicode, and the fields that JSON-RPC requires. Raises
    ValueError if it is not such a message."""
    if _fits(data):
        return data
    text = _ESCAPE.sub(  # a match of six bytes is one half of a surrogate pair
        lambda escape: rb"\ufffd" if len(escape[0]) == 6 else escape[0], data.decode("utf-8", "replace").encode()
    )
    if _fits(text):
        return text
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError("It is nested too deeply.") from None
    if not isinstance(message, dict) or not {"method", "result", "error"} & message.keys():
        raise ValueError("It is not a JSON-RPC message.")
    message["jsonrpc"] = "2.0"
    if "method" not in message:  # a response, which has either a well-formed result or a well-formed error
        error, result = message.get("error"), message.get("result")
        message = {"jsonrpc": "2.0", "id": message.get("id")}
        if error is None:
            message["result"] = result if isinstance(result, dict) else {BARE: result}
        else:
            fields = error if isinstance(error, dict) else {"message": error}
            code, reason = fields.get("code"), fields.get("message")
            message["error"] = {
                "code": code if isinstance(code, int) else -32603,
                "message": reason if isinstance(reason, str) else json.dumps(reason),
                **({"data": fields["data"]} if "data" in fields else {}),
            }
    encoded = json.dumps(message).encode()
    jsonrpc_message_adapter.validate_json(encoded, by_name=False)
    return encoded


def messages_in(data: bytes) -> list[bytes]:
    """Return the messages of a batch, as the revision of 2025-03-26 had them; anything else is one message."""
    if data.lstrip()[:1] != b"[":
        return [data]
    try:
        batch = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return [data]
    return [json.dumps(each).encode() for each in batch] or [data]


def printable(line: bytes) -> str:
    """Return a server's line in a form that is safe to log."""
    return "".join(each if each.isprintable() else " " for each in line[:LOG_LINE].decode(errors="replace")).strip()


def request_id(data: bytes) -> int | str | None:
    """Find the id in a message that cannot be parsed, near its beginning or its end."""
    for part in (data[:300], data[-300:]):
        if match := _ID.search(part):
            return int(match[1]) if match[1] else match[2].decode(errors="replace")
    return None


def _fits(data: bytes) -> bool:
    try:
        jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError:
        return False
    return True


# ---- results --------------------------------------------------------------------------------------------------------


def repair_result(method: str, version: str, result: Json) -> Json:
    """Repair a result for the SDK. version: the protocol's, if it is negotiated already."""
    match method:
        case "initialize":
            return result if _valid(method, version, result) else _handshake(result)
        case "tools/list":
            # Keep the tools that can be offered, each with a note about its repairs.
            listed = result.get("tools", result.get(BARE))
            tools: list[Json] = []
            left_out: list[tuple[str, str]] = []
            for number, each in enumerate(listed if isinstance(listed, list) else ()):
                tool = _tool(version, each)
                if isinstance(tool, str):
                    name = each.get("name") if isinstance(each, dict) else None
                    left_out.append(
                        (name[:NAME_LENGTH] if isinstance(name, str) and name else f"number {number + 1}", tool)
                    )
                else:
                    tools.append(tool)
            if not isinstance(listed, list):
                left_out.append(("all of them", "the list of tools is no list"))
            cursor = result.get("nextCursor")
            rest = {key: value for key, value in result.items() if key not in ("tools", "nextCursor", BARE)}
            page = {**rest, "tools": tools, **({"nextCursor": cursor} if isinstance(cursor, str) and cursor else {})}
            page = _with_meta(page, {LEFT_OUT: left_out} if left_out else {})
            return page if _valid("tools/list", version, page) else {key: page[key] for key in page.keys() & _PAGE}
        case "resources/list" | "resources/templates/list" | "prompts/list":
            if _valid(method, version, result):
                return result
            key = {"resources/list": "resources", "prompts/list": "prompts"}.get(method, "resourceTemplates")
            listed = result.get(key)
            entries = listed if isinstance(listed, list) else []
            return {**result, key: [each for each in entries if _valid(method, version, {**result, key: [each]})]}
        case "completion/complete":
            completion = result.get("completion")
            fields = completion if isinstance(completion, dict) else {}
            suggested = fields.get("values")
            values = [each for each in suggested if isinstance(each, str)] if isinstance(suggested, list) else []
            if len(values) <= MOST_COMPLETIONS and _valid(method, version, result):
                return result
            has_more = fields.get("hasMore") is True or len(values) > MOST_COMPLETIONS
            return {**result, "completion": {"values": values[:MOST_COMPLETIONS], "hasMore": has_more}}
        case "tasks/get" if isinstance(result.get("result"), dict):
            call: Json = {"resultType": "complete", **result["result"]}  # type: ignore[dict-item]
            return {**result, "result": repair_result("tools/call", version, call)}
        case "tools/call" if result.get("resultType") == "task":
            return result
        case "tools/call" if isinstance(result.get("task"), dict) and "content" not in result:
            return _with_meta({"content": []}, {TASK: result["task"]})
        case "tools/call" | "tasks/result":
            method = "tools/call"
            result = _with_meta(result, {})
            return result if _valid(method, version, result) else _call_result(version, result)
        case _:
            return result


def _valid(method: str, version: str, result: Mapping[str, object]) -> bool:
    try:
        validate_server_result(method, version, result)
    except KeyError:
        return True  # an unknown method has no schema
    except ValueError:  # the base of pydantic's ValidationError
        return False
    return True


def _with_meta(value: Json, notes: Mapping[str, object]) -> Json:
    """Add our notes to the value's `_meta`, and remove such notes that the server wrote itself."""
    meta = value.get("_meta")
    if meta is None and not notes:
        return value
    entries = meta if isinstance(meta, dict) else {}
    own = {key: each for key, each in entries.items() if not key.startswith("agent_server/")}
    rest = {key: each for key, each in value.items() if key != "_meta"}
    return {**rest, "_meta": {**own, **notes}} if own or notes else rest


def _handshake(result: Json) -> Json:
    """Return an `initialize` result with the fields that a client needs."""
    version, capabilities, server = (result.get(key) for key in ("protocolVersion", "capabilities", "serverInfo"))
    offered = {
        kind: {"listChanged": isinstance(each, dict) and each.get("listChanged") is True}
        for kind, each in (capabilities.items() if isinstance(capabilities, dict) else ())
        if kind in ("resources", "prompts")
    }
    tools = capabilities.get("tools") if isinstance(capabilities, dict) else None
    changes = isinstance(tools, dict) and tools.get("listChanged") is True
    named = server if isinstance(server, dict) else {}
    repaired: Json = {
        "protocolVersion": version if isinstance(version, str) else LATEST_HANDSHAKE_VERSION,
        "capabilities": {"tools": {"listChanged": changes}, **offered},
        "serverInfo": {"name": str(named.get("name", "")), "version": str(named.get("version", ""))},
    }
    return (
        {**repaired, "instructions": result["instructions"]}
        if isinstance(result.get("instructions"), str)
        else repaired
    )


def _call_result(version: str, result: Json) -> Json:
    """Repair a tool's result; blocks of content that are invalid become text."""
    warnings: list[str] = []
    content = result.get("content", result.get(BARE, result.get("toolResult")))
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    usable_blocks: list[object] = []
    for block in blocks:
        if _valid("tools/call", version, {"content": [block]}):
            usable_blocks.append(block)
            continue
        kind = block.get("type") if isinstance(block, dict) else type(block).__name__
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            warnings.append(f"a block of content of type {str(kind)[:64]!r} is shown as its text")
            usable_blocks.append({"type": "text", "text": block["text"]})
        else:
            warnings.append(f"a block of content of type {str(kind)[:64]!r} is shown as JSON")
            usable_blocks.append(_text(block))
    repaired: Json = {"content": usable_blocks}
    if not isinstance(content, list) and content is not None:
        warnings.append("its content is no list")
    if result.get("isError") is True:
        repaired["isError"] = True
    structured = result.get("structuredContent")
    if structured is not None:
        with_it = {**repaired, "structuredContent": structured}
        if _valid("tools/call", version, with_it):
            repaired = with_it
        else:
            warnings.append("its structuredContent is no object")
            repaired["content"] = [_text(structured)] if not blocks else repaired["content"]
    extra: Json = {key: result[key] for key in ("resultType", "_meta") if key in result}
    return _with_meta({**extra, **repaired}, {WARNINGS: warnings} if warnings else {})


def _text(value: object) -> Json:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text if len(text) <= BLOCK_CHARACTERS else text[:BLOCK_CHARACTERS] + "..."}


# ---- tools ----------------------------------------------------------------------------------------------------------


_PAGE = {"tools", "nextCursor", "_meta"}


def _tool(version: str, wire: object) -> Json | str:
    """Return a tool in a form that can be offered, or the reason why it cannot."""
    if not isinstance(wire, dict):
        return "it is no object"
    name = wire.get("name")
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > NAME_LENGTH or not name.isprintable() or name != name.strip():
        return f"its name is longer than {NAME_LENGTH} characters, or has some that cannot be shown"
    notes: Json = {}
    schema, note = offered_schema(wire.get("inputSchema", {}))
    output = wire.get("outputSchema")
    if isinstance(output, dict) and output:
        notes[OUTPUT_SCHEMA] = output
    description = wire.get("description")
    if isinstance(description, str) and len(description) > DESCRIPTION_LENGTH:
        description, note = description[:DESCRIPTION_LENGTH] + "...", note or "its description is cut"
    repaired = {key: value for key, value in wire.items() if key not in ("outputSchema", "_meta") and value is not None}
    repaired |= {"inputSchema": schema, "_meta": wire.get("_meta") if isinstance(wire.get("_meta"), dict) else None}
    repaired |= {} if description is None else {"description": description}
    if not _is_valid_tool(version, repaired):
        repaired = {key: repaired[key] for key in ("name", "inputSchema", "_meta")}
        repaired |= {"description": description} if isinstance(description, str) else {}
        if _is_valid_tool(version, with_it := {**repaired, "annotations": wire.get("annotations")}):
            repaired = with_it
        note = note or "fields that do not fit the protocol are ignored"
    if not _is_valid_tool(version, repaired):
        repaired["inputSchema"], note = {"type": "object"}, "its inputSchema cannot be used: any arguments are accepted"
    if note:
        notes[NOTE] = note
    return _with_meta(repaired, notes)


def _is_valid_tool(version: str, tool: Json) -> bool:
    try:
        Tool.model_validate(tool)
    except ValidationError:
        return False
    listing = {"tools": [_with_meta(tool, {})], "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    return _valid("tools/list", version, listing)


def offered_schema(declared: object) -> tuple[Json, str]:
    """Return a usable schema of a tool's arguments, and how it is looser than the declared one ("" if it is not)."""
    if not isinstance(declared, dict):
        return {"type": "object"}, "its inputSchema is no object: any arguments are accepted"
    schema, note = dict(declared), ""
    kind = schema.get("type")
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        return {"type": "object"}, f"its inputSchema has the type {kind!r}: any arguments are accepted"
    schema["type"] = "object"
    if not isinstance(schema.get("properties", {}), dict):
        del schema["properties"]
        note = "its inputSchema's properties are no object: any arguments are accepted"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        del schema["required"]
        note = note or "its inputSchema's required is no list of names: all arguments are optional"
    reason = _refusal(schema)
    if reason is None:
        return schema, note
    # Offer the names of the arguments, and the schemas of those that can be used.
    note = f"its inputSchema is offered in part: {reason}"
    shared: Json = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    if _refusal({"type": "object", **shared}) is not None:
        shared = {}
    properties: dict[str, Json] = {}
    arguments = schema.get("properties")
    for name, each in list(arguments.items() if isinstance(arguments, dict) else ())[:LOOSE_PROPERTIES]:
        alone = each if isinstance(each, dict) else {}
        usable = _refusal({"type": "object", "properties": {name: alone}, **shared}) is None
        plain: Json = {key: alone[key] for key in ("description", "type") if isinstance(alone.get(key), str)}
        properties[name] = alone if usable else plain
    loosened: Json = {"type": "object", "properties": properties, **shared}
    if isinstance(schema.get("required"), list):
        loosened["required"] = schema["required"]
    if _refusal(loosened) is None:
        return loosened, note
    names: Json = {"type": "object", "properties": {name: {} for name in properties}}
    return names if _refusal(names) is None else {"type": "object"}, note


def _refusal(schema: Json) -> str | None:
    try:
        if len(json.dumps(schema)) > SCHEMA_BYTES:
            return f"it has more than {SCHEMA_BYTES} bytes"
        prepare(schema)
    except SchemaRefused as error:
        return f"{error.message.rstrip('.')}{f' (at {error.path})' if error.path else ''}"
    except (RecursionError, ValueError, TypeError, AttributeError, KeyError):
        return "it is no JSON Schema"
    return None
