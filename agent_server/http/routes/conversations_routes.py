"""OpenAI's Conversations: stored with the responses, and removed with them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from adapters.openai_conversations import (
    ConversationRecord,
    Item,
    conversation_body,
    deleted_conversation,
    is_conversation,
    item_object,
    items_body,
    read_change,
    read_items,
    read_new,
)
from adapters.sse import json_bytes
from agent_server.http.routes.http import guarded, read_body
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server

MAX_ITEMS = 2000
MAX_BYTES = 32 * 2**20
"""Limit on a conversation's items as JSON: every change reads and writes all of them."""
LOCKED = "Another request is changing this conversation. Try again when it has ended."


class Conversations:
    """The stored conversations, and locks on those that a request is changing."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._locked: set[tuple[str, str]] = set()

    async def find(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Look up a conversation. Raises RequestError("not_found")."""
        body = None
        if is_conversation(conversation_id):
            body = await self.server.store.response(tenant, conversation_id)
        if body is None:
            raise RequestError("not_found", "There is no such conversation.", "conversation")
        return msgspec.convert(body, ConversationRecord)

    async def put(
        self, tenant: str, conversation_id: str, change: Callable[[ConversationRecord], ConversationRecord]
    ) -> ConversationRecord:
        """Apply `change` to the stored conversation, including changes by other servers. Raises RequestError."""

        def changed_body(body: object) -> object:
            return msgspec.to_builtins(change(msgspec.convert(body, ConversationRecord)))

        await self.find(tenant, conversation_id)
        stored = await self.server.store.change_response(tenant, conversation_id, changed_body)
        if stored is None:  # deleted in between
            raise RequestError("not_found", "There is no such conversation.", "conversation")
        return msgspec.convert(stored, ConversationRecord)

    async def add(
        self, tenant: str, conversation_id: str, response_id: str, added: Sequence[Item], output: Sequence[Item]
    ) -> None:
        """Add a response's input and output items. Limits do not apply, since the client has the response already.

        A conversation that was deleted meanwhile stays deleted.
        """
        with contextlib.suppress(RequestError):
            await self.put(tenant, conversation_id, lambda record: record.with_response(response_id, added, output))

    def lock(self, tenant: str, conversation_id: str) -> Callable[[], None]:
        """Lock a conversation against other changes. Returns the function that unlocks it. Raises RequestError."""
        key = tenant, conversation_id
        if key in self._locked:
            raise RequestError("conflict", LOCKED, "conversation", code="conversation_locked")
        self._locked.add(key)
        return lambda: self._locked.discard(key)

    @contextlib.contextmanager
    def changing(self, request: Request) -> Iterator[tuple[str, str]]:
        tenant, conversation_id = request.state.tenant, request.path_params["id"]
        release = self.lock(tenant, conversation_id)
        try:
            yield tenant, conversation_id
        finally:
            release()

    # ---- routes -----------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        record = check_size(read_new(await self._body(request), new_id, int(time.time())))
        await self.server.store.save_response(request.state.tenant, record.id, msgspec.to_builtins(record))
        return _json(conversation_body(record))

    async def retrieve(self, request: Request) -> Response:
        return _json(conversation_body(await self._record(request)))

    async def change(self, request: Request) -> Response:
        metadata = read_change(await self._body(request))
        with self.changing(request) as (tenant, conversation_id):
            record = await self.put(
                tenant, conversation_id, lambda record: msgspec.structs.replace(record, metadata=metadata)
            )
        return _json(conversation_body(record))

    async def delete(self, request: Request) -> Response:
        with self.changing(request) as (tenant, conversation_id):
            await self.find(tenant, conversation_id)
            await self.server.store.delete_response(tenant, conversation_id)
        return _json(deleted_conversation(conversation_id))

    async def items(self, request: Request) -> Response:
        return _json(items_body((await self._record(request)).items, request.query_params))

    async def add_items(self, request: Request) -> Response:
        added = read_items(await self._body(request), new_id)
        with self.changing(request) as (tenant, conversation_id):
            record = await self.put(tenant, conversation_id, lambda record: check_size(record.with_items(added)))
        return _json(items_body(record.items[-len(added) :], {"order": "asc"}))

    async def item(self, request: Request) -> Response:
        return _json(json_bytes(item_object((await self._record(request)).item(request.path_params["item"]))))

    async def delete_item(self, request: Request) -> Response:
        with self.changing(request) as (tenant, conversation_id):
            item_id = request.path_params["item"]
            record = await self.put(tenant, conversation_id, lambda record: record.without(item_id))
        return _json(conversation_body(record))

    async def _record(self, request: Request) -> ConversationRecord:
        return await self.find(request.state.tenant, request.path_params["id"])

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self.server.settings.http.max_body)


def check_size(record: ConversationRecord) -> ConversationRecord:
    """Return the record. Raises RequestError if the conversation is too long."""
    if len(record.items) > MAX_ITEMS:
        message = f"A conversation may have at most {MAX_ITEMS} items. Delete some, or start another conversation."
        raise RequestError("invalid_request", message, "conversation")
    if len(json_bytes(record.items)) > MAX_BYTES:
        message = (
            f"A conversation may have at most {MAX_BYTES} bytes. Delete some items, or start another conversation."
        )
        raise RequestError("payload_too_large", message, "conversation")
    return record


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def conversation_routes(conversations: Conversations) -> list[BaseRoute]:
    one = "/v1/conversations/{id}"
    served: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("/v1/conversations", "POST", conversations.create),
        (one, "GET", conversations.retrieve),
        (one, "POST", conversations.change),
        (one, "DELETE", conversations.delete),
        (one + "/items", "GET", conversations.items),
        (one + "/items", "POST", conversations.add_items),
        (one + "/items/{item}", "GET", conversations.item),
        (one + "/items/{item}", "DELETE", conversations.delete_item),
    ]
    reads = conversations.server.reads
    return [
        Route(path, guarded(endpoint, reads if method == "GET" else None), methods=[method])
        for path, method, endpoint in served
    ]
