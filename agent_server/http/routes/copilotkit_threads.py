"""Threads as CopilotKit's runtime protocol has them: listed, read, renamed, archived, deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters import copilotkit
from adapters.body import read_json
from adapters.copilotkit import ThreadEntry
from adapters.errors import RequestError
from agent_server.http.routes.copilotkit_replay import ThreadReplay
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.id_route import IdRoute
from agent_server.http.routes.request_body import read_request
from agent_server.runs.store.records import ThreadRecord

if TYPE_CHECKING:
    from agent_server.http.server import Server

LIST_LIMIT = 50
TITLE = 80


class ThreadCalls:
    """The calls on threads."""

    def __init__(self, server: Server, replay: ThreadReplay) -> None:
        self._server = server
        self._store = server.store
        self._runs = server.runs
        self._replay = replay

    def routes(self, base: str) -> list[Route]:
        """Below this path."""
        thread = base + "/threads/{thread_id}"
        return [
            Route(base + "/threads", guarded(self.threads)),
            Route(base + "/threads/clear", guarded(self.clear), methods=["POST"]),
            IdRoute(thread + "/messages", guarded(self.messages)),
            IdRoute(thread + "/events", guarded(self.events)),
            IdRoute(thread + "/state", guarded(self.state)),
            IdRoute(thread + "/archive", guarded(self.archive), methods=["POST"]),
            IdRoute(thread, guarded(self.change), methods=["PATCH"]),
            IdRoute(thread, guarded(self.delete), methods=["DELETE"]),
        ]

    async def threads(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", "")
        found, cursor = await self._store.threads(
            request.state.tenant,
            agent_id=query.get("agentId"),
            archived=query.get("includeArchived") == "true",
            limit=int(limit) if limit.isdecimal() and len(limit) < 5 else LIST_LIMIT,
            cursor=query.get("cursor"),
        )
        return json_response(copilotkit.threads_page([_entry(record) for record in found], cursor))

    async def messages(self, request: Request) -> Response:
        found = await self._store.messages(request.state.tenant, request.path_params["thread_id"])
        return json_response({"messages": found})

    async def events(self, request: Request) -> Response:
        """What a connect would replay."""
        history = await self._replay.history(request.path_params["thread_id"], request.state.tenant)
        if not history.run_id:
            return json_response({"events": []})
        return json_response({"events": [*copilotkit.replay_head(history), copilotkit.replay_end(history)]})

    async def state(self, request: Request) -> Response:
        found = await self._store.state(request.state.tenant, request.path_params["thread_id"])
        return json_response({"state": {} if found is None else found})

    async def change(self, request: Request) -> Response:
        wire = await read_request(self._server, request, read_json, starts_run=False)
        name = wire.get("name") if isinstance(wire, dict) else None
        archived = wire.get("archived") if isinstance(wire, dict) else None
        changed = await self._store.change_thread(
            request.state.tenant,
            request.path_params["thread_id"],
            name=name[:TITLE] if isinstance(name, str) else None,
            archived=archived if isinstance(archived, bool) else None,
        )
        return json_response(_entry(changed))

    async def archive(self, request: Request) -> Response:
        changed = await self._store.change_thread(request.state.tenant, request.path_params["thread_id"], archived=True)
        return json_response(_entry(changed))

    async def clear(self, request: Request) -> Response:
        """Deletes all threads of the tenant; what runs on them is stopped first."""
        tenant, store = request.state.tenant, self._store
        while True:
            found, _ = await store.threads(tenant, archived=True)
            if not found:
                return Response(status_code=204)
            for record in found:
                try:
                    await self._delete(record.id, tenant)
                except RequestError as error:
                    if error.kind != "not_found":  # another request deleted it
                        raise

    async def delete(self, request: Request) -> Response:
        """Deletes the thread; what runs on it is stopped first."""
        await self._delete(request.path_params["thread_id"], request.state.tenant)
        return json_response({"deleted": True})

    async def _delete(self, thread_id: str, tenant: str) -> None:
        for run in await self._runs.going_on(thread_id, tenant):
            await run.cancel()
            await run.wait()
        await self._store.delete_thread(tenant, thread_id)


def _entry(record: ThreadRecord) -> ThreadEntry:
    return ThreadEntry(
        id=record.id,
        name=record.name or None,
        agent_id=record.agent_id,
        archived=record.archived,
        created_at=_iso(record.created_at),
        updated_at=_iso(record.updated_at),
    )


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
