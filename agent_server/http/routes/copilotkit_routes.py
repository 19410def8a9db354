"""CopilotKit's runtime protocol at `/copilotkit`, its threads and replays included: `runtimeUrl` may point here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message

from adapters import copilotkit
from adapters.body import notes_of_request, read_json
from adapters.copilotkit import Card, History, ThreadEntry
from adapters.errors import RequestError
from adapters.forwarded_props import is_proxied
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.routes.answering import app_answer, stream_answer_of_app
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import (
    Encoder,
    EventStream,
    GeneratedFrames,
    RunFrames,
    each_of,
    guarded,
    parse_off_loop,
    read_body,
    read_request,
    stream_run,
)
from agent_server.http.routes.openai_routes import IdRoute, transcribe_base64
from agent_server.ids import new_id
from agent_server.runs.store.records import ThreadRecord
from agent_server.version import version
from events.vocabulary import Event

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun


class ThreadReplay:
    """Replays threads from the store and the active runs. Has no state of its own."""

    def __init__(self, server: Server) -> None:
        self._store = server.store
        self._runs = server.runs

    async def frames(self, thread_id: str, tenant: str, encoder: Encoder) -> AsyncGenerator[bytes, None]:
        """The thread's messages and state, then its active run, if any. Nothing for an unknown thread."""
        running = await self._runs.going_on(thread_id, tenant)
        if running and running[0].log.whole:
            async with contextlib.aclosing(self._join(running, encoder)) as frames:
                async for frame in frames:
                    yield frame
            return
        history = await self.history(thread_id, tenant)
        if not history.run_id:
            return
        for event in [*copilotkit.replay_head(history), copilotkit.replay_end(history)]:
            yield encoder.encode(event)

    async def _join(self, runs: Sequence[AnyRun], encoder: Encoder) -> AsyncGenerator[bytes, None]:
        """The thread before the active run, including the messages of waiting runs; then all events of these runs, past
        and future, one run after another.

        Waiting runs are subscribed to at once: a run without a reader would end.
        """
        first, *waiting = runs
        read = [RunFrames(first, _WithoutStart(encoder)), *(RunFrames(run, encoder) for run in waiting)]
        async with contextlib.AsyncExitStack() as stack:
            frames = [await stack.enter_async_context(contextlib.aclosing(each_of(each))) for each in read]
            # The stored messages, and those of runs that are not stored (yet).
            messages = await self._store.messages(runs[0].tenant, runs[0].thread_id)
            known_ids = {message["id"] for message in messages}
            for message in (message for run in runs for message in run.input.messages):
                if message.id not in known_ids:
                    known_ids.add(message.id)
                    messages.append(message.model_dump(mode="json", by_alias=True, exclude_none=True))
            history = History(thread_id=first.thread_id, run_id=first.id, messages=messages, state=first.input.state)
            for event in copilotkit.replay_head(history):
                yield encoder.encode(event)
            for each in frames:
                async for frame in each:
                    yield frame

    async def history(self, thread_id: str, tenant: str) -> History:
        """The thread's stored history; without a run id if there is no such thread."""
        store = self._store
        runs, messages = await store.runs(tenant, thread_id), await store.messages(tenant, thread_id)
        if not runs and not messages:
            return History(thread_id=thread_id)
        records = await store.interrupts(tenant, thread_id)
        return History(
            thread_id=thread_id,
            run_id=runs[-1].id if runs else new_id("run"),  # a branch without runs
            messages=messages,
            state=await store.state(tenant, thread_id),
            interrupts=[each.interrupt for each in records if each.status == "open"],
        )


class _WithoutStart:
    """Omits RUN_STARTED of a run that the replay has already announced."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self.content_type = inner.content_type

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        return b"" if sequence == 1 else self._inner.encode(event, sequence=sequence, choice=choice)

    def finish(self) -> bytes:
        return self._inner.finish()

    def keep_alive(self) -> bytes:
        return self._inner.keep_alive()


LIST_LIMIT = 50
TITLE = 80


class ThreadCalls:
    """The endpoints for threads."""

    def __init__(self, server: Server, replay: ThreadReplay) -> None:
        self._server = server
        self._store = server.store
        self._runs = server.runs
        self._replay = replay

    def routes(self, base: str) -> list[Route]:
        """The routes below the path `base`."""
        thread = base + "/threads/{thread_id}"
        return [
            Route(base + "/threads", guarded(self.threads, self._server.reads)),
            Route(base + "/threads/clear", guarded(self.clear), methods=["POST"]),
            IdRoute(thread + "/messages", guarded(self.messages, self._server.reads)),
            IdRoute(thread + "/events", guarded(self.events, self._server.reads)),
            IdRoute(thread + "/state", guarded(self.state, self._server.reads)),
            IdRoute(thread + "/archive", guarded(self.archive), methods=["POST"]),
            IdRoute(thread, guarded(self.change), methods=["PATCH"]),
            IdRoute(thread, guarded(self.delete), methods=["DELETE"]),
        ]

    async def threads(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", "")
        records, cursor = await self._store.threads(
            request.state.tenant,
            agent_id=query.get("agentId"),
            archived=query.get("includeArchived") == "true",
            limit=int(limit) if limit.isdecimal() and len(limit) < 5 else LIST_LIMIT,
            cursor=query.get("cursor"),
        )
        return json_response(copilotkit.threads_page([_entry(record) for record in records], cursor))

    async def messages(self, request: Request) -> Response:
        messages = await self._store.messages(request.state.tenant, request.path_params["thread_id"])
        return json_response({"messages": messages})

    async def events(self, request: Request) -> Response:
        """The events that a connect would replay."""
        history = await self._replay.history(request.path_params["thread_id"], request.state.tenant)
        if not history.run_id:
            return json_response({"events": []})
        return json_response({"events": [*copilotkit.replay_head(history), copilotkit.replay_end(history)]})

    async def state(self, request: Request) -> Response:
        state = await self._store.state(request.state.tenant, request.path_params["thread_id"])
        return json_response({"state": {} if state is None else state})

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
        """Delete all threads of the tenant, after cancelling their active runs."""
        tenant, store = request.state.tenant, self._store
        while True:
            records, _ = await store.threads(tenant, archived=True)
            if not records:
                return Response(status_code=204)
            for record in records:
                try:
                    await self._delete(record.id, tenant)
                except RequestError as error:
                    if error.kind != "not_found":  # another request deleted it
                        raise

    async def delete(self, request: Request) -> Response:
        """Delete the thread, after cancelling its active runs."""
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


BASE = "/copilotkit"


def routes(server: Server) -> list[BaseRoute]:
    runtime = Runtime(server)
    path = BASE + "/agent/{agent}"
    runtime.resources = [
        *ThreadCalls(server, runtime.replay).routes(BASE),
        Route(BASE + "/annotate", guarded(runtime.annotate), methods=["POST"]),
    ]
    return [
        Route(BASE, guarded(runtime.single), methods=["POST"]),
        Route(BASE + "/", guarded(runtime.single), methods=["POST"]),
        Route(BASE + "/info", guarded(runtime.info), middleware=[Middleware(GZipMiddleware, minimum_size=1024)]),
        Route(path + "/run", guarded(runtime.run), methods=["POST"]),
        Route(path + "/connect", guarded(runtime.connect), methods=["POST"]),
        IdRoute(path + "/stop/{thread_id}", guarded(runtime.stop), methods=["POST"]),
        Route(path + "/suggest", guarded(runtime.suggest), methods=["POST"]),
        Route(BASE + "/inspector-metadata", guarded(runtime.inspector)),
        *runtime.resources,
    ]


class Runtime:
    """The runtime's methods, each in both endpoint forms. Has no state of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = server.settings
        self.replay = ThreadReplay(server)
        self.resources: list[Route] = []
        """The routes that `resource/request` of the single endpoint can reach."""

    async def info(self, request: Request) -> Response:
        return json_response(self._info())

    async def run(self, request: Request) -> Response:
        agent = request.path_params["agent"]
        if refusal := self._unknown(agent):
            return refusal
        wire = await read_request(self._server, request, read_json, apps=True)
        return await self._run(agent, wire, request.state.tenant)

    async def suggest(self, request: Request) -> Response:
        """A run that is not stored, and ends when its client disconnects."""
        agent = request.path_params["agent"]
        if refusal := self._unknown(agent):
            return refusal
        wire = await read_request(self._server, request, read_json)
        return await self._run(agent, wire, request.state.tenant, suggests=True)

    async def inspector(self, request: Request) -> Response:
        """Only CopilotKit's cloud has such metadata."""
        return Response(status_code=204, headers={"cache-control": "no-store, private"})

    async def annotate(self, request: Request) -> Response:
        status, body = copilotkit.no_annotations()
        return json_response(body, status)

    async def connect(self, request: Request) -> Response:
        agent = request.path_params["agent"]
        if refusal := self._unknown(agent):
            return refusal
        wire = await read_request(self._server, request, read_json, starts_run=False)
        return self._connect(wire, request.state.tenant, agent)

    async def stop(self, request: Request) -> Response:
        body = await read_body(request, self._settings.http.max_body)
        wire = await parse_off_loop(len(body), read_json, body) if body.strip() else {}
        return await self._stop(request.path_params["thread_id"], wire, request.state.tenant)

    async def single(self, request: Request) -> Response:
        """The single endpoint: all methods on one path."""
        try:
            body = await read_body(request, self._settings.http.max_body)
            call = await parse_off_loop(len(body), copilotkit.parse_call, body)
        except RequestError as error:
            if error.kind != "invalid_request":
                raise
            status, refusal = copilotkit.invalid_call(error.message)
            return json_response(refusal, status)
        match call.method:
            case "info":
                return json_response(self._info())
            case "inspector/metadata":
                return await self.inspector(request)
            case "resource/request":
                return await self._resource(request, call)
            case "transcribe":
                return await transcribe_base64(self._server, call.body)
        if unknown := self._unknown(call.agent):
            return unknown
        tenant = request.state.tenant
        match call.method:
            case "agent/run":
                return await self._run(call.agent, call.body, tenant)
            case "agent/suggest":
                return await self._run(call.agent, call.body, tenant, suggests=True)
            case "agent/connect":
                return self._connect(call.body, tenant, call.agent)
            case _:
                return await self._stop(call.thread_id, call.body, tenant)

    async def _resource(self, request: Request, call: copilotkit.RuntimeCall) -> Response:
        """Answer as the same request on its own path would. Only `resources` can be reached."""
        path, _, query = call.path.partition("?")
        body = b"" if call.body is None else msgspec.json.encode(call.body)
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-length"]
        scope = {
            **request.scope,
            "path": request.scope.get("root_path", "") + BASE + unquote(path),
            "raw_path": (request.scope.get("root_path", "") + BASE + path).encode(errors="replace"),
            "method": call.http_method,
            "query_string": query.encode(),
            "headers": headers,
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        for route in self.resources:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                endpoint: Callable[[Request], Awaitable[Response]] = route.endpoint
                return await endpoint(Request({**scope, **child_scope}, receive))
        return json_response({"error": "Not found"}, 404)

    def _info(self) -> dict[str, object]:
        server = self._server
        cards: list[tuple[str, Card]] = []
        for name, served in server.agents.items():
            capabilities: dict[str, object] = {}
            with contextlib.suppress(EngineError):  # the model is still loading; the page may be opened before
                agent_capabilities = server.capabilities(name)
                capabilities = agent_capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)
            surfaces, description = served.announces_a2ui, served.description
            card = Card(name=name, description=description, capabilities=capabilities, surfaces=surfaces)
            cards.append((name, card))
        return copilotkit.runtime_info(cards, model_status(server), transcribes=server.transcriber is not None)

    def _unknown(self, agent: str) -> Response | None:
        if agent in self._server.agents:
            return None
        status, body = copilotkit.unknown_agent(agent)
        return json_response(body, status)

    async def _run(self, agent: str, wire: object, tenant: str, *, suggests: bool = False) -> Response:
        if not is_proxied(wire):
            self._server.runs.check_room(
                tenant
            )  # for the single endpoint, which learns only now that the call starts a run
        messages = wire.get("messages") if isinstance(wire, dict) else None
        size = len(messages) * 1024 if isinstance(messages, list) else 0
        inbound = await parse_off_loop(size, copilotkit.from_wire, wire, media=self._server.takes)
        encoder: Encoder = copilotkit.Encoder(legacy=inbound.extra.legacy)
        if (answer := app_answer(self._server, agent, inbound)) is not None:
            return stream_answer_of_app(answer, encoder, self._settings.http.keep_alive)
        options, grace = inbound.options, self._settings.runs.grace
        if suggests or copilotkit.is_suggestion(inbound):  # older pages request suggestions by an ordinary run
            options, grace = msgspec.structs.replace(options, store=False), 0.0
        run = await self._server.runs.start(
            inbound.input,
            options,
            agent=agent,
            tenant=tenant,
            grace=grace,
            warnings=[*inbound.extra.warnings, *notes_of_request().warnings],
        )
        return stream_run(run, encoder, interval=self._settings.http.keep_alive)

    def _connect(self, wire: object, tenant: str, agent: str) -> Response:
        thread_id, legacy = copilotkit.thread_of(wire)
        encoder = copilotkit.Encoder(legacy=legacy)
        return EventStream(
            GeneratedFrames(self.replay.frames(thread_id, tenant, encoder)),
            content_type=encoder.content_type,
            keep_alive=encoder.keep_alive,
            interval=self._settings.http.keep_alive,
        )

    async def _stop(self, thread_id: str, wire: object, tenant: str) -> Response:
        run_id = copilotkit.run_to_stop(wire)
        matching_runs = [run for run in await self._server.runs.going_on(thread_id, tenant) if run_id in (None, run.id)]
        stopped = [await run.cancel() for run in matching_runs]
        if run_id is not None and not matching_runs:
            self._server.runs.stop_early(run_id, tenant)
        return json_response(copilotkit.stopped(any(stopped)))


def model_status(server: Server) -> dict[str, object]:
    """The server's model for the page: its name, its state and details of the engine."""
    status = server.model.status
    answer: dict[str, object] = {
        "model": server.model.name,
        "bundled": not server.settings.served.model,
        "state": status.state,
        "message": status.message,
        "changeable": server.make_model is not None,
        "version": version(),
        "details": {},
    }
    if status.progress is not None:
        answer["progress"] = status.progress
    with contextlib.suppress(EngineError):
        info = server.model.engine.info
        answer |= {"contextLength": info.context_length, "vocabSize": info.vocab_size, "details": info.details}
    return answer
