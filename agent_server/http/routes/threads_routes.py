"""Threads at `/agui/threads`: list, read, rename, archive, rate, delete; and an operator's erasure of a tenant's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded, read_struct
from agent_server.http.routes.openai_routes import IdRoute
from agent_server.runs.store import Erasure, RemovalScope

if TYPE_CHECKING:
    from agent_server.http.server import Server

BODY = 256 * 1024
BODY_HINT = "Invalid body"
LIMIT = 50


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a thread; absent fields stay unchanged. A name has at most 200 characters."""

    name: str | None = None
    archived: bool | None = None
    metadata: dict[str, Any] | None = None


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The last message of a branch; the results of its tool calls are included."""

    message_id: str


class MessageFeedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A person's rating of one message."""

    message_id: str
    score: Literal[-1, 0, 1]
    comment: str = ""


def routes(server: Server) -> list[BaseRoute]:
    threads = Threads(server)
    one = "/agui/threads/{thread_id}"
    return [
        Route("/agui/threads", guarded(threads.list, server.reads)),
        IdRoute(one, guarded(threads.read, server.reads), methods=["GET"]),
        IdRoute(one, guarded(threads.change), methods=["PATCH"]),
        IdRoute(one, guarded(threads.delete), methods=["DELETE"]),
        IdRoute(one + "/messages", guarded(threads.messages, server.reads)),
        IdRoute(one + "/messages/{message_id}", guarded(threads.delete_message), methods=["DELETE"]),
        IdRoute(one + "/removed", guarded(threads.removed, server.reads)),
        IdRoute(one + "/removed/{removal_id}/restore", guarded(threads.restore), methods=["POST"]),
        IdRoute(one + "/branch", guarded(threads.branch), methods=["POST"]),
        IdRoute(one + "/state", guarded(threads.state, server.reads)),
        IdRoute(one + "/runs", guarded(threads.runs, server.reads)),
        IdRoute(one + "/feedback", guarded(threads.feedback, server.reads), methods=["GET"]),
        IdRoute(one + "/feedback", guarded(threads.judge), methods=["POST"]),
        *erasure_routes(server),
    ]


class Threads:
    """The endpoints for threads. Another tenant's threads are reported as not found."""

    def __init__(self, server: Server) -> None:
        self._store = server.store
        self._live = server.runs

    async def list(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", str(LIMIT))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 4) or not 0 < int(limit) <= 100:
            raise RequestError("invalid_request", "The limit must be a number from 1 to 100.", "limit")
        threads, cursor = await self._store.threads(
            request.state.tenant,
            agent_id=query.get("agentId"),
            archived=query.get("archived") == "true",
            limit=int(limit),
            cursor=query.get("cursor"),
        )
        return json_response({"threads": threads, "nextCursor": cursor})

    async def read(self, request: Request) -> Response:
        """The thread with its messages, state and open interrupts: all that a client needs to display it."""
        tenant, thread_id = _tenant_and_thread(request)
        record = await self._store.thread(tenant, thread_id)
        interrupts = await self._store.interrupts(tenant, thread_id)
        return json_response(
            {
                "thread": record,
                "messages": await self._store.messages(tenant, thread_id),
                "state": await self._store.state(tenant, thread_id),
                "interrupts": [each.interrupt for each in interrupts if each.status == "open"],
                "running": (running := await self._live.ids_on_thread(thread_id, tenant)),
                "waiting": running[1:],
            }
        )

    async def messages(self, request: Request) -> Response:
        await self._store.thread(*_tenant_and_thread(request))
        return json_response({"messages": await self._store.messages(*_tenant_and_thread(request))})

    async def removed(self, request: Request) -> Response:
        """The messages that edits of the history removed."""
        await self._store.thread(*_tenant_and_thread(request))
        return json_response({"removed": await self._store.removals(*_tenant_and_thread(request))})

    async def restore(self, request: Request) -> Response:
        """Restore what an edit removed; answers with the thread's messages."""
        tenant, thread_id = await self._idle(request)
        await self._store.restore(tenant, thread_id, request.path_params["removal_id"])
        return json_response({"messages": await self._store.messages(tenant, thread_id)})

    async def delete_message(self, request: Request) -> Response:
        tenant, thread_id = await self._idle(request)
        await self._store.delete_message(tenant, thread_id, request.path_params["message_id"])
        return Response(status_code=204)

    async def branch(self, request: Request) -> Response:
        """Create a thread that continues from a message of this one."""
        branch = await read_struct(request, Branch, BODY, BODY_HINT)
        return json_response(
            {"thread": await self._store.branch_thread(*_tenant_and_thread(request), branch.message_id)}, 201
        )

    async def state(self, request: Request) -> Response:
        await self._store.thread(*_tenant_and_thread(request))
        return json_response({"state": await self._store.state(*_tenant_and_thread(request))})

    async def runs(self, request: Request) -> Response:
        await self._store.thread(*_tenant_and_thread(request))
        return json_response({"runs": await self._store.runs(*_tenant_and_thread(request))})

    async def change(self, request: Request) -> Response:
        change = await read_struct(request, Change, BODY, BODY_HINT)
        if change.name is not None and not 0 < len(change.name) <= 200:
            raise RequestError("invalid_request", "A name has 1 to 200 characters.", "name")
        tenant, thread_id = _tenant_and_thread(request)
        record = await self._store.change_thread(
            tenant, thread_id, name=change.name, archived=change.archived, metadata=change.metadata
        )
        return json_response({"thread": record})

    async def delete(self, request: Request) -> Response:
        tenant, thread_id = await self._idle(request)
        await self._store.delete_thread(tenant, thread_id)
        return Response(status_code=204)

    async def _idle(self, request: Request) -> tuple[str, str]:
        """The tenant and the thread of a request.

        Raises RequestError("conflict") while the thread has an active run.
        """
        tenant, thread_id = _tenant_and_thread(request)
        if await self._live.ids_on_thread(thread_id, tenant):
            raise RequestError("conflict", "A run is active in this thread. Cancel it first.")
        return tenant, thread_id

    async def feedback(self, request: Request) -> Response:
        await self._store.thread(*_tenant_and_thread(request))
        return json_response({"feedback": await self._store.feedback(*_tenant_and_thread(request))})

    async def judge(self, request: Request) -> Response:
        feedback = await read_struct(request, MessageFeedback, BODY, BODY_HINT)
        tenant, thread_id = _tenant_and_thread(request)
        record = await self._store.give_feedback(
            tenant, thread_id, feedback.message_id, feedback.score, feedback.comment
        )
        return json_response({"feedback": record}, 201)


def _tenant_and_thread(request: Request) -> tuple[str, str]:
    return request.state.tenant, request.path_params["thread_id"]


NO_TENANT = "The parameter tenant is required. Use ?tenant=NAME, or an empty name on a server without keys."


WAIT_SECONDS = 10.0
"""How long the response waits for an erasure to finish."""


class ErasureStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure, with the threads and responses removed so far. total: the threads when it began."""

    id: str
    status: Literal["running", "finished"]
    tenant: str
    key: str | None
    threads: int
    responses: int
    total: int
    created_at: int
    ended_at: int | None


def _erasure_record(erasure: Erasure) -> ErasureStatus:
    status: Literal["running", "finished"] = "running" if erasure.ended_at is None else "finished"
    return ErasureStatus(
        id=erasure.id, status=status, tenant=erasure.tenant, key=erasure.key, threads=erasure.threads,
        responses=erasure.responses, total=erasure.total, created_at=erasure.created_at, ended_at=erasure.ended_at,
    )  # fmt: skip


def erasure_routes(server: Server) -> list[BaseRoute]:
    async def erase(request: Request) -> Response:
        query = request.query_params
        if unknown := query.keys() - {"tenant", "key"}:
            raise RequestError("invalid_request", f"Unknown parameter {min(unknown)[:80]!r}.", "key")
        if "tenant" not in query:
            raise RequestError("invalid_request", NO_TENANT, "tenant")
        scope = RemovalScope(tenant=query["tenant"], key=query.get("key"))
        erased = _erasure_record(await server.erase(scope, request.state.principal.name, WAIT_SECONDS))
        if erased.status == "finished":
            return json_response(erased)
        response = json_response(erased, 202)
        response.headers["location"] = f"{request.scope.get('root_path', '')}/operator/erasures/{erased.id}"
        return response

    async def erasures(_: Request) -> Response:
        return json_response({"erasures": [_erasure_record(each) for each in await server.store.erasures()]})

    async def erasure(request: Request) -> Response:
        erasure = await server.store.erasure(request.path_params["erasure_id"])
        if erasure is None:
            raise RequestError("not_found", "There is no such erasure.", "erasure_id")
        return json_response(_erasure_record(erasure))

    return [
        Route("/operator/threads", guarded(erase), methods=["DELETE"]),
        Route("/operator/erasures", guarded(erasures), methods=["GET"]),
        Route("/operator/erasures/{erasure_id}", guarded(erasure), methods=["GET"]),
    ]
