"""Normalise the histories that clients send: unique call ids, and each call followed by its results.

It works on AG-UI messages, so all wires share it. Errors name each message by its position in the client's request.
Chat templates rely on the order: many render a result without its call's id.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from ag_ui.core import AssistantMessage, Message, ToolMessage

from adapters.errors import RequestError

NewId = Callable[[str], str]


class PlacedMessage(NamedTuple):
    """A message and its position in the request ("messages.3")."""

    message: Message
    at: str


class _Owned(NamedTuple):
    rank: int
    message: ToolMessage


def put_in_order(history: Sequence[PlacedMessage], new_id: NewId, *, id_field: str = "tool_call_id") -> list[Message]:
    """Move every tool result directly after the message that made its call, in the order of the calls.

    If two calls share an id, the later one gets a new id. Raises RequestError for a result that answers no call.
    id_field: the wire's name for a result's call id, for that error.
    """
    # Where each call id was used: the index of the message, and that among its calls.
    owners: dict[str, list[tuple[int, int]]] = {}
    for index, (message, _) in enumerate(history):
        calls = message.tool_calls if isinstance(message, AssistantMessage) else None
        for rank, call in enumerate(calls or ()):
            owners.setdefault(call.id, []).append((index, rank))
    results: dict[int, list[_Owned]] = {}
    for index, placed in enumerate(history):
        if isinstance(placed.message, ToolMessage):
            # Prefer the latest call with that id before the result, then the first one after it.
            at = f"{placed.at}.{id_field}"
            places = owners.get(placed.message.tool_call_id)
            if not places:
                raise RequestError("invalid_request", f"{at} names a tool call that no message made.", param=at)
            owner, rank = next((place for place in reversed(places) if place[0] < index), places[0])
            results.setdefault(owner, []).append(_Owned(rank, placed.message))
    ordered: list[Message] = []
    used_ids: set[str] = set()
    for index, (message, _) in enumerate(history):
        if isinstance(message, ToolMessage):
            continue
        ordered.append(message)
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            continue
        for call in message.tool_calls:
            if call.id in used_ids:
                call.id = new_id("call")
            used_ids.add(call.id)
        for rank, result in sorted(results.get(index, []), key=lambda owned: owned.rank):
            result.tool_call_id = message.tool_calls[rank].id
            ordered.append(result)
    return ordered


def object_text(value: object, at: str) -> str:
    """Return the arguments of an earlier call as the text of a JSON object.

    An object is encoded, missing arguments become `{}`, as do an empty list (PHP's empty array) and null, and truncated
    text is completed. Raises RequestError for anything else, since no template could render it.
    """
    if value is None or value == []:
        return "{}"
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    if isinstance(value, str):
        if value.strip() in ("", "[]", "null"):
            return "{}"
        if _is_object(value):
            return value
        closed = close_object(value)
        if closed is not None:
            return closed
    raise RequestError("invalid_request", f"{at} must be the text of a JSON object.", param=at)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False


def close_object(text: str) -> str | None:
    """Complete truncated JSON text. The member in which it breaks off is kept if possible, and dropped otherwise.

    Returns None if the text is not the beginning of a JSON object.
    """
    text = text.strip()
    # Find the open brackets, whether a string is open, and the last position to cut at with its depth.
    stack: list[str] = []
    cut = (0, 0)
    quoted = escaped = False
    for i, char in enumerate(text):
        if quoted:
            quoted, escaped = escaped or char != '"', char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
            cut = (i + 1, len(stack))
        elif char in "}]" and stack:
            stack.pop()
        elif char == ",":
            cut = (i, len(stack))
    if not text.startswith("{") or not stack:
        return None
    closing = "".join(reversed(stack))
    whole = text + ('"' if quoted else "") + closing
    if _is_object(whole):
        return whole
    position, depth = cut
    if not _BROKEN_MEMBER.match(text[position:]):
        return None
    shorter = text[:position] + closing[-depth:]
    return shorter if _is_object(shorter) else None


_BROKEN_MEMBER = re.compile(r'^,?\s*(?:"|[a-z0-9.eE+-]*$)')


PREFIX = "sealed-1."


class Seal(NamedTuple):
    thread_id: str
    message_id: str
    value: str


def wrap(seal: Seal) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(list(seal))).decode()


def unwrap(text: str) -> Seal | None:
    """Decode a seal; None for a string that `wrap` did not make."""
    if not text.startswith(PREFIX):
        return None
    try:
        thread_id, message_id, value = msgspec.json.decode(
            base64.urlsafe_b64decode(text.removeprefix(PREFIX)), type=tuple[str, str, str]
        )
    except (binascii.Error, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return Seal(thread_id, message_id, value)
