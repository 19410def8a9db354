"""Stored responses, and the requests that read, list and compact them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from ag_ui.core import (
    DataSource,
    DocumentPart,
    ImagePart,
    Message,
    RunAgentInput,
    SystemMessage,
    TextPart,
    UserMessage,
)

from adapters.body import DEFAULT_LIMITS, Inbound, Limits, read_object, wrong
from adapters.client_history import NewId
from adapters.errors import RequestError
from adapters.mcp_request import split_tool_name
from adapters.openai_responses.input_items import COMPACTION, Items, OpenSeal
from adapters.openai_responses.responses_inbound import FIELDS, ResponseFlags, read_values
from adapters.openai_responses.responses_outbound import search_query, usage_object
from adapters.request_fields import STRING, Field, honoured, read_fields
from adapters.sse import json_bytes
from events.options import SEARCH_LABEL, GenerationOptions
from events.sampling import SamplingParams
from events.vocabulary import TokenUsage

PAGE, MAX_PAGE = 20, 100
RESPONSE_PREFIX = "resp_"
"""Prefix of response ids, which distinguishes them from conversations and A2A tasks in the same table."""


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored response. response: the response object. flags: those of the request. messages: the conversation after
    it, in wire form, without instructions. agent, run_id, thread_id: those of its run."""

    id: str
    agent: str
    run_id: str
    thread_id: str
    response: dict[str, Any]
    flags: ResponseFlags
    messages: list[dict[str, Any]] = []

    @property
    def is_in_progress(self) -> bool:
        return self.response.get("status") in ("queued", "in_progress")

    def item(self, item_id: str) -> dict[str, Any] | None:
        """Return an item of the answer or of the request; None if no item has this id.

        A web search is returned as a call with its result, which the search's own item does not have.
        """
        output: list[dict[str, Any]] = self.response["output"]
        item: dict[str, Any] | None = next((each for each in (*output, *self.items) if each.get("id") == item_id), None)
        if item is None or item not in output or item["type"] != "web_search_call":
            return item
        calls = [call for message in self.messages for call in message.get("toolCalls") or ()]
        results = {message["toolCallId"]: message["content"] for message in self.messages if message["role"] == "tool"}
        for call in reversed(calls):
            name = split_tool_name(call["function"]["name"], (SEARCH_LABEL,))
            arguments = call["function"]["arguments"]
            if name is not None and call["id"] in results and search_query(arguments) == item["action"]["query"]:
                called = {"server_label": name[0], "name": name[1], "arguments": arguments}
                return {"id": item_id, "type": "mcp_call", **called, "output": results[call["id"]]}
        return item

    @property
    def items(self) -> list[dict[str, Any]]:
        """The request's input items, each with a type and an id."""
        return [
            {"type": "message", **item, "id": item.get("id") or f"{self.id}_in_{index}"}
            for index, item in enumerate(self.flags.items)
        ]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a stored response. after: the number of the last event that the client has."""

    stream: bool = False
    after: int = -1


def read_query(query: Mapping[str, str]) -> Query:
    """Read a query such as `?stream=true&starting_after=5`. Raises RequestError."""
    stream = query.get("stream", "false").lower()
    if stream not in ("true", "false"):
        raise wrong("stream", "must be true or false")
    after = _number(query.get("starting_after"), "starting_after", -1)
    if after >= 0 and stream == "false":
        raise wrong("starting_after", "needs stream to be true")
    return Query(stream=stream == "true", after=after)


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise wrong(name, "must be a whole number")
    return int(text)


def item_list(items: list[dict[str, object]], query: Mapping[str, str]) -> bytes:
    """Encode a page of items, by the query's `limit`, `order` (default desc) and `after`. Raises RequestError."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wrong("order", "must be asc or desc")
    limit = _number(query.get("limit"), "limit", PAGE)
    if not 1 <= limit <= MAX_PAGE:
        raise wrong("limit", f"must be from 1 to {MAX_PAGE}")
    remaining = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        place = next((index for index, item in enumerate(remaining) if item["id"] == after), None)
        if place is None:
            raise RequestError("not_found", "There is no such item.", "after")
        remaining = remaining[place + 1 :]
    page = remaining[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_bytes({"object": "list", "data": page, **ends, "has_more": len(remaining) > limit})


def deleted_body(response_id: str) -> bytes:
    return json_bytes({"id": response_id, "object": "response", "deleted": True})


COMPACT_FIELDS: dict[str, Field] = {
    name: FIELDS[name]
    for name in (
        "model", "input", "previous_response_id", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "service_tier", "image",
    )
} | {"instructions": honoured("for the model that writes the summary; not stored", STRING)}  # fmt: skip
KEPT_ROLES = ("user", "system", "developer")


def parse_compact(
    body: bytes,
    *,
    new_id: NewId,
    limits: Limits = DEFAULT_LIMITS,
    media: Iterable[str] = (),
    items: Items = MappingProxyType({}),
    open_seal: OpenSeal,
) -> Inbound:
    """Read a request to compact a conversation. `with_history` then adds that of a previous response. Raises
    RequestError."""
    values = read_fields(read_object(body, limits, shape=dict), COMPACT_FIELDS)
    values.setdefault("input", None)
    if values["input"] is None and values.get("previous_response_id") is None:
        raise wrong("input", "is required where there is no previous_response_id")
    values["store"] = False
    return read_values(values, new_id=new_id, limits=limits, media=tuple(media), items=items, open_seal=open_seal)


def summary_run(model: str | None, instructions: str, text: str, tokens: int, new_id: NewId) -> Inbound:
    """Return a run that writes a summary, without tools and thinking, and unstored. tokens: the longest summary."""
    messages: list[Message] = [
        SystemMessage(id=new_id("msg"), content=instructions),
        UserMessage(id=new_id("msg"), content=text),
    ]
    run = RunAgentInput(
        thread_id=new_id("thread"), run_id=new_id("run"), messages=messages, tools=[], context=[], state={},
        forwarded_props={},
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens)
    return Inbound(
        input=run, options=GenerationOptions(model=model, sampling=sampling, thinking=False, store=False), stream=False
    )


def retained_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the messages that a compaction retains, as items. Those of an earlier summary are dropped."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role not in KEPT_ROLES or (message.id or "").startswith(f"{COMPACTION}_"):
            continue
        content: Any = message.content
        parts = [TextPart(text=content)] if isinstance(content, str) else content or ()
        item_parts: list[dict[str, object]] = []
        for part in parts:
            if isinstance(part, TextPart):
                item_parts.append({"type": "input_text", "text": part.text})
            elif isinstance(part, ImagePart):
                item_parts.append({"type": "input_image", "detail": "auto", "image_url": _address(part.source)})
            elif isinstance(part, DocumentPart):
                named: Mapping[str, object] = part.metadata if isinstance(part.metadata, dict) else {}
                field = "file_data" if isinstance(part.source, DataSource) else "file_url"
                item_parts.append({"type": "input_file", field: _address(part.source), **named})
            else:
                raise wrong("input", f"holds {getattr(part, 'type', 'unknown')} content, which cannot be kept")
        item = {"type": "message", "id": message.id, "status": "completed", "role": message.role}
        items.append({**item, "content": item_parts})
    return items


def _address(source: Any) -> str:
    return f"data:{source.mime_type};base64,{source.value}" if isinstance(source, DataSource) else str(source.value)


def compacted_body(
    id: str, created: int, messages: Sequence[Message], sealed: str, usage: Iterable[TokenUsage]
) -> bytes:
    """Encode a compaction's response. id: its id, `resp_...`. sealed: the summary, which only this server can read."""
    item = {"type": "compaction", "id": f"{COMPACTION}_{id.removeprefix('resp_')}", "encrypted_content": sealed}
    return json_bytes(
        {
            "id": id,
            "object": "response.compaction",
            "created_at": created,
            "output": [*retained_items(messages), item],
            "usage": usage_object(usage),
        }
    )
