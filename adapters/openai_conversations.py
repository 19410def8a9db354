"""OpenAI's Conversations: items stored under one id, which responses read and extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adapters.body import DEFAULT_LIMITS, Lenient, Limits, convert, read_json, wrong
from adapters.errors import RequestError
from adapters.openai_responses.input_items import read_input
from adapters.openai_responses.stored import item_list
from adapters.sse import json_bytes

Item = dict[str, Any]
MAX_ADDED = 20
"""The protocol's limit of items in one request."""
PREFIX = "conv_"
"""Prefix of conversation ids, which distinguishes them from responses in the same table."""
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
"""The protocol's limits of metadata."""


def is_conversation(id: str) -> bool:
    return id.startswith(PREFIX)


class PendingApproval(msgspec.Struct, frozen=True):
    """A conversation's last response, which asked for approvals. item_id: its last item."""

    response_id: str
    item_id: str


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored conversation. items: in wire form, each with a type and an id. created: seconds since the epoch. number:
    the count of all items ever added, from which new ids are made. pending: None if the last response asked for no
    approval."""

    id: str
    created: int
    metadata: dict[str, str] = {}
    items: list[Item] = []
    number: int = 0
    pending: PendingApproval | None = None

    def with_items(self, items: Sequence[Item]) -> ConversationRecord:
        """Return the conversation with more items at the end; those without an id get one."""
        added = [
            {"type": "message", **item, "id": item.get("id") or f"{self.id}_{self.number + index}"}
            for index, item in enumerate(items)
        ]
        new_ids = {item["id"] for item in added}
        older = [item for item in self.items if item["id"] not in new_ids]
        number = self.number + len(added)
        return msgspec.structs.replace(self, items=[*older, *added], number=number)

    def with_response(self, response_id: str, added: Sequence[Item], output: Sequence[Item]) -> ConversationRecord:
        """Return the conversation with a response's input and output."""
        asks = any(item["type"] == "mcp_approval_request" for item in output)
        pending = PendingApproval(response_id, output[-1]["id"]) if asks else None
        return msgspec.structs.replace(self.with_items([*added, *output]), pending=pending)

    def answered_until(self) -> int:
        """Return the number of items up to the end of the response that asked for approvals; 0 if there is none, or if
        its last item was deleted."""
        last = self.pending.item_id if self.pending is not None else None
        return next((index + 1 for index, item in enumerate(self.items) if item["id"] == last), 0)

    def item(self, item_id: str) -> Item:
        """Return an item by its id. Raises RequestError("not_found")."""
        matching_item = next((item for item in self.items if item["id"] == item_id), None)
        if matching_item is None:
            raise RequestError("not_found", "There is no such item in this conversation.", "item_id")
        return matching_item

    def without(self, item_id: str) -> ConversationRecord:
        removed_item = self.item(item_id)
        return msgspec.structs.replace(self, items=[item for item in self.items if item is not removed_item])


class ConversationBody(Lenient, frozen=True):
    items: list[Item] | None = None
    metadata: object = None


class ItemsBody(Lenient, frozen=True):
    items: list[Item]


class MetadataBody(Lenient, frozen=True):
    metadata: object


def read_new(body: bytes, new_id: Callable[[str], str], created: int) -> ConversationRecord:
    """Read the body that creates a conversation. Raises RequestError."""
    request: ConversationBody = convert(read_json(body) if body.strip() else {}, ConversationBody, "")
    record = ConversationRecord(id=new_id("conv"), created=created, metadata=read_metadata(request.metadata))
    return record.with_items(_check_items(request.items or [], new_id))


def read_items(body: bytes, new_id: Callable[[str], str]) -> list[Item]:
    """Read the items to add to a conversation. Raises RequestError."""
    request: ItemsBody = convert(read_json(body), ItemsBody, "")
    if not request.items:
        raise wrong("items", "must not be empty")
    return _check_items(request.items, new_id)


def read_change(body: bytes) -> dict[str, str]:
    request: MetadataBody = convert(read_json(body), MetadataBody, "")
    return read_metadata(request.metadata)


def read_metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    pairs: dict[str, str] = convert(value, dict[str, str], "metadata")
    if len(pairs) > MAX_PAIRS or any(len(key) > MAX_KEY or len(text) > MAX_VALUE for key, text in pairs.items()):
        raise wrong(
            "metadata",
            f"may have at most {MAX_PAIRS} pairs, with keys of {MAX_KEY} and values of {MAX_VALUE} characters",
        )
    return pairs


def _check_items(items: list[Item], new_id: Callable[[str], str], limits: Limits = DEFAULT_LIMITS) -> list[Item]:
    """Check that items are valid input of a response. Media and compaction items are only checked when a model is
    called."""
    if len(items) > MAX_ADDED:
        raise wrong("items", f"must have at most {MAX_ADDED} items")
    if items:
        try:
            every = ("image", "audio", "video", "document")
            read_input(items, new_id=new_id, limits=limits, media=every, open_seal=str)
        except RequestError as error:
            place = "items" + (error.param or "input").removeprefix("input")
            raise RequestError(error.kind, error.message.replace(error.param or "input", place, 1), place) from None
    return items


def conversation_body(record: ConversationRecord) -> bytes:
    fields = {"id": record.id, "object": "conversation", "created_at": record.created, "metadata": record.metadata}
    return json_bytes(fields)


def items_body(items: list[Item], query: Mapping[str, str]) -> bytes:
    """A page of items: `limit`, `order` (desc if absent), `after`. Raises RequestError."""
    return item_list([item_object(item) for item in items], query)


def item_object(item: Item) -> Item:
    """Return an item in wire form: with its status, and a message's text as a list of parts."""
    content = item.get("content")
    if item["type"] == "message" and isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part = {"type": kind, "text": content, **({"annotations": []} if kind == "output_text" else {})}
        return {"status": "completed", **item, "content": [part]}
    return {"status": "completed", **item}


def deleted_conversation(conversation_id: str) -> bytes:
    return json_bytes({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def conversation_of(body: bytes) -> str | None:
    """Return the conversation that a Responses request names, without validating the rest of the body. An invalid value
    is refused when the body is read."""
    if b'"conversation"' not in body:
        return None
    try:
        value = msgspec.json.decode(body, type=_Named).conversation
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = value.get("id") if isinstance(value, dict) else value
    return named if isinstance(named, str) and named else None


class _Named(msgspec.Struct):
    conversation: Any = None
