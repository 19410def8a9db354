"""OpenAI's Conversations: kept beside the stored responses, and removed with them."""

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
"""Of a conversation's items as JSON: all of them are read and written with every change."""
LOCKED = "Another request changes this conversation; try again when it has ended."


class Conversations:
    """What this server keeps, and which conversations are being answered in now."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._held: set[tuple[str, str]] = set()

    async def find(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """Raises RequestError."""
        found = None
        if is_conversation(conversation_id):
            found = await self._server.store.response(tenant, conversation_id)
        if found is None:
            raise RequestError("not_found", "There is no such conversation.", "conversation")
        return msgspec.convert(found, ConversationRecord)

    async def put(
        self, tenant: str, conversation_id: str, change: Callable[[ConversationRecord], ConversationRecord]
    ) -> ConversationRecord:
        """The conversation as `change` made it, with what other servers put into it meanwhile. Raises RequestError."""

        def changed(found: object) -> object:
            return msgspec.to_builtins(change(msgspec.convert(found, ConversationRecord)))

        await self.find(tenant, conversation_id)
        kept = await self._server.store.change_response(tenant, conversation_id, changed)
        if kept is None:  # deleted in between
            raise RequestError("not_found", "There is no such conversation.", "conversation")
        return msgspec.convert(kept, ConversationRecord)

    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> None:
        """Add what a response was asked with and has answered, however many that makes: it was told already. A
        conversation that was deleted meanwhile stays so."""
        with contextlib.suppress(RequestError):
            await self.put(tenant, conversation_id, lambda record: record.with_items(items))

    def take(self, tenant: str, conversation_id: str) -> Callable[[], None]:
        """Keep others from changing a conversation until what is returned is called. Raises RequestError."""
        key = tenant, conversation_id
        if key in self._held:
            raise RequestError("conflict", LOCKED, "conversation", code="conversation_locked")
        self._held.add(key)
        return lambda: self._held.discard(key)

    @contextlib.contextmanager
    def changing(self, request: Request) -> Iterator[tuple[str, str]]:
        tenant, conversation_id = request.state.tenant, request.path_params["id"]
        release = self.take(tenant, conversation_id)
        try:
            yield tenant, conversation_id
        finally:
            release()

    # ---- routes -----------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        record = checked(read_new(await self._body(request), new_id, int(time.time())))
        await self._server.store.save_response(request.state.tenant, record.id, msgspec.to_builtins(record))
        return _json(conversation_body(record))

    async def retrieve(self, request: Request) -> Response:
        return _json(conversation_body(await self._found(request)))

    async def change(self, request: Request) -> Response:
        metadata = read_change(await self._body(request))
        with self.changing(request) as (tenant, conversation_id):
            record = await self.put(
                tenant, conversation_id, lambda found: msgspec.structs.replace(found, metadata=metadata)
            )
        return _json(conversation_body(record))

    async def delete(self, request: Request) -> Response:
        with self.changing(request) as (tenant, conversation_id):
            await self.find(tenant, conversation_id)
            await self._server.store.delete_response(tenant, conversation_id)
        return _json(deleted_conversation(conversation_id))

    async def items(self, request: Request) -> Response:
        return _json(items_body((await self._found(request)).items, request.query_params))

    async def add_items(self, request: Request) -> Response:
        added = read_items(await self._body(request), new_id)
        with self.changing(request) as (tenant, conversation_id):
            record = await self.put(tenant, conversation_id, lambda found: checked(found.with_items(added)))
        return _json(items_body(record.items[-len(added) :], {"order": "asc"}))

    async def item(self, request: Request) -> Response:
        return _json(json_bytes(item_object((await self._found(request)).item(request.path_params["item"]))))

    async def delete_item(self, request: Request) -> Response:
        with self.changing(request) as (tenant, conversation_id):
            gone = request.path_params["item"]
            record = await self.put(tenant, conversation_id, lambda found: found.without(gone))
        return _json(conversation_body(record))

    async def _found(self, request: Request) -> ConversationRecord:
        return await self.find(request.state.tenant, request.path_params["id"])

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._server.settings.http.max_body)


def checked(record: ConversationRecord) -> ConversationRecord:
    """Raises RequestError for a conversation that is too long."""
    if len(record.items) > MAX_ITEMS:
        message = f"A conversation may have {MAX_ITEMS} items; delete some, or begin another."
        raise RequestError("invalid_request", message, "conversation")
    if len(json_bytes(record.items)) > MAX_BYTES:
        message = f"A conversation may have {MAX_BYTES} bytes; delete some of its items, or begin another."
        raise RequestError("payload_too_large", message, "conversation")
    return record


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def conversation_routes(kept: Conversations) -> list[BaseRoute]:
    one = "/v1/conversations/{id}"
    served: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("/v1/conversations", "POST", kept.create),
        (one, "GET", kept.retrieve),
        (one, "POST", kept.change),
        (one, "DELETE", kept.delete),
        (one + "/items", "GET", kept.items),
        (one + "/items", "POST", kept.add_items),
        (one + "/items/{item}", "GET", kept.item),
        (one + "/items/{item}", "DELETE", kept.delete_item),
    ]
    return [Route(path, guarded(endpoint), methods=[method]) for path, method, endpoint in served]
