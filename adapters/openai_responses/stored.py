"""What is kept of a response, and the requests that ask for it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adapters.body import wrong
from adapters.errors import RequestError
from adapters.frame_json import json_bytes
from adapters.openai_responses.responses_inbound import ResponseFlags

PAGE, MAX_PAGE = 20, 100


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """response: the object. flags: of the request. messages: the conversation after it, in wire form, without
    instructions. agent, run_id, thread_id: of the run that makes it."""

    id: str
    agent: str
    run_id: str
    thread_id: str
    response: dict[str, Any]
    flags: ResponseFlags
    messages: list[dict[str, Any]] = []

    @property
    def going_on(self) -> bool:
        return self.response.get("status") in ("queued", "in_progress")

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An item of the answer or of the request, None if there is none with this id."""
        return next((each for each in (*self.response["output"], *self.items) if each.get("id") == item_id), None)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The request's input items, each with a type and an id."""
        return [
            {"type": "message", **item, "id": item.get("id") or f"{self.id}_in_{index}"}
            for index, item in enumerate(self.flags.items)
        ]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """How a stored response is asked for. after: the number of the last event that the client has."""

    stream: bool = False
    after: int = -1


def read_query(query: Mapping[str, str]) -> Query:
    """`?stream=true&starting_after=5`. Raises RequestError."""
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
    """A page of input items: `limit`, `order` (desc if absent), `after`. Raises RequestError."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wrong("order", "must be asc or desc")
    limit = _number(query.get("limit"), "limit", PAGE)
    if not 1 <= limit <= MAX_PAGE:
        raise wrong("limit", f"must be from 1 to {MAX_PAGE}")
    found = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        place = next((index for index, item in enumerate(found) if item["id"] == after), None)
        if place is None:
            raise RequestError("not_found", "There is no such item.", "after")
        found = found[place + 1 :]
    page = found[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_bytes({"object": "list", "data": page, **ends, "has_more": len(found) > limit})


def deleted_body(response_id: str) -> bytes:
    return json_bytes({"id": response_id, "object": "response", "deleted": True})
