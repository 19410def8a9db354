"""OpenAI's Responses over HTTP and WebSocket: create, fetch, resume, cancel, delete, list input, compact."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import Message
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from adapters import openai_responses
from adapters.answer import fold
from adapters.body import Inbound, Limits
from adapters.errors import RequestError
from adapters.openai_conversations import conversation_of, is_conversation
from adapters.openai_responses import (
    TRIGGER,
    Continuation,
    CreateResponse,
    ResponseFlags,
    ResponseIdentity,
    ResponseRecord,
    ResponsesSession,
    ResponseStream,
    compacted_body,
    deleted_body,
    item_list,
    parse_compact,
    read_query,
    referenced,
    response_object,
    response_of,
    summary_run,
    with_history,
)
from adapters.sse import json_bytes
from adapters.websocket_actions import Close, Send
from agent_server.agents.compaction import INSTRUCTIONS, PIECE, SUMMARY, SealedView, pieces, transcript_of
from agent_server.agents.sealing import COMPACTION_PLACE
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.routes.answering import (
    CLIENT_GONE,
    ENDS,
    ServersOwn,
    agent_for,
    collect,
    expected_context,
    failed,
    model_for,
    model_name,
    servers_own,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.conversations_routes import Conversations, conversation_routes
from agent_server.http.routes.http import guarded, parse_beside, read_body, read_run_body
from agent_server.http.routes.tokenize_routes import loaded, prompt_tokens
from agent_server.http.routes.websocket_routes import FAULT, Connection
from agent_server.ids import new_id
from agent_server.pacing import collect_yielding
from events.message import each_dict, each_model, to_models
from events.message import fold as fold_messages
from events.vocabulary import COMPACTED_ACTIVITY, Event, RunError, TokenUsage

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs import Run
    from agent_server.runs.sharing.interfaces import AnyRun

SUMMARY_TOKENS = 2048
"""The longest summary, where the model's context has room for it."""
PLACE = COMPACTION_PLACE
"""What such a summary is sealed for, in the place of a thread and of a message."""


def opened(server: Server, tenant: str, sealed: str) -> str | list[Message] | None:
    """What a compaction item holds: the summary of one that was asked for beside the conversation, or all that a model
    is told from there on; None for one that was not sealed here for this tenant."""
    if (told := told_from(server, tenant, sealed)) is not None:
        return to_models(told)
    return server.sealer.open(sealed, tenant=tenant, thread_id=PLACE, message_id=PLACE)


def told_from(server: Server, tenant: str, sealed: str) -> list[dict[str, Any]] | None:
    """The messages, in wire form, that stand for a conversation that was made short in a run."""
    text = server.sealer.open_compacted(sealed, tenant=tenant)
    return None if text is None else msgspec.json.decode(text, type=SealedView).messages


def shortened(server: Server, tenant: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation after a run in wire form, without what the run's last compaction stands for."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("activityType") == COMPACTED_ACTIVITY and (sealed := message["content"].get("sealed")):
            return [*(told_from(server, tenant, sealed) or messages[:index]), *messages[index + 1 :]]
    return messages


async def compact(server: Server, request: Request, inbound: Inbound) -> Response:
    """inbound: the whole conversation. Raises RequestError."""
    conversation = inbound.input.messages
    instructions = conversation[0].content if inbound.extra.instructions else None
    messages = conversation[1:] if inbound.extra.instructions else conversation
    summary = _Summary(server, request, inbound.options.model, str(instructions or ""))
    try:
        text = await summary.of(messages)
    except _ClientGone:
        return Response(status_code=CLIENT_GONE)
    sealed = server.sealer.seal(text, tenant=request.state.tenant, thread_id=PLACE, message_id=PLACE)
    body = compacted_body(new_id("resp"), int(time.time()), messages, sealed, summary.usage)
    return Response(body, media_type="application/json")


class _ClientGone(Exception):
    pass


class _Summary:
    """`usage` is of all runs that the summary took."""

    def __init__(self, server: Server, request: Request, model: str | None, instructions: str) -> None:
        self._server = server
        self._request = request
        self._model = model
        self._instructions = f"{instructions}\n\n{INSTRUCTIONS}" if instructions else INSTRUCTIONS
        self.usage: list[TokenUsage] = []

    async def of(self, messages: Sequence[Message]) -> str:
        """Piece by piece where one prompt does not hold the conversation, each with the summary of those before."""
        await loaded(self._server, self._model)
        length = await expected_context(model_for(self._server, self._model))
        context = length or SUMMARY_TOKENS * 10
        texts = await asyncio.to_thread(pieces, messages, await self._piece(messages, context))
        summary = ""
        for text in texts:
            told = f"Summary of what was before:\n{summary}\n\n{text}" if summary else text
            summary = await self._run(told, max(1, min(SUMMARY_TOKENS, int(SUMMARY * context))))
        return summary

    async def _piece(self, messages: Sequence[Message], context: int) -> int:
        """Bytes that one run is given."""
        prompts = await loaded(self._server, self._model)
        text = "\n".join(map(transcript_of, messages))
        tokens = await run_in_threadpool(lambda: len(prompts.tokenize(text, parse_control_tokens=False)))
        return int(PIECE * context * len(text.encode()) / max(1, tokens))

    async def _run(self, text: str, tokens: int) -> str:
        asked = summary_run(self._model, self._instructions, text, tokens, new_id)
        answers = await collect(self._request, await start_runs(self._server, self._request, asked))
        if answers is None:
            raise _ClientGone
        answer = fold(answers[0])
        self.usage.extend(answer.usage)
        if answer.error is not None:
            raise failed(answer.error, "responses")
        if not answer.text.strip() or answer.finish not in ("stop", "length"):
            reason = f"it ended with {answer.finish}" if answer.text.strip() else "its answer was empty"
            raise RequestError("internal", f"The model made no summary of the conversation: {reason}.")
        return answer.text.strip()


logger = logging.getLogger("agent_server.responses")
FOR_EVER = float("inf")
TOO_LONG = "The response is longer than what the server keeps of a run."


class Responses:
    """The wire's life on one server: what it starts, keeps and finds again."""

    def __init__(self, server: Server, conversations: Conversations) -> None:
        self.server = server
        self.conversations = conversations
        self._keeping: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def create(self, request: Request) -> Response:
        body = await read_run_body(self.server, request)
        conversation = conversation_of(body)
        release = self.conversations.take(request.state.tenant, conversation) if conversation else _nothing
        try:
            inbound = await self._inbound(request, body)
            # release: the conversation, when the answer is added to it.
            flags: ResponseFlags = inbound.extra
            identity = self._identity(inbound)
            (run,) = await start_runs(self.server, request, inbound, grace=FOR_EVER if flags.background else 0.0)
            kept = await self._keep(run, identity, inbound, release) if flags.store else None
            if inbound.stream:
                encoder = ResponseStream(identity, flags)
                hold = not flags.background
                return await stream_answer(
                    self.server, request, [run], encoder, wire="responses", hold=hold, before_end=kept
                )
            if flags.background:
                return answer(response_object((), identity, flags))
            answers = await collect(request, [run])
            if answers is None:
                return Response(status_code=CLIENT_GONE)
            if kept is not None:
                await kept()
            found = response_object(answers[0], identity, flags)
            end = answers[0][-1]
            if isinstance(end, RunError) and not found["output"]:
                raise failed(end, "responses")
            return answer(found)
        except BaseException:
            release()
            raise

    async def begin(
        self, connection: HTTPConnection, body: bytes, recent: ResponseRecord | None, release: Callable[[], None]
    ) -> tuple[Inbound, ResponseIdentity, Run, Keeping | None]:
        """A response that is asked for over a WebSocket, and its run. Raises RequestError."""
        inbound = await self._inbound(connection, body, recent)
        if inbound.extra.background:
            raise RequestError("invalid_request", "background is not supported on a WebSocket. Use HTTP.", "background")
        identity = self._identity(inbound)
        (run,) = await start_runs(self.server, connection, inbound)
        kept = await self._keep(run, identity, inbound, release) if inbound.extra.store else None
        return inbound, identity, run, kept

    async def _inbound(self, request: HTTPConnection, body: bytes, recent: ResponseRecord | None = None) -> Inbound:
        """The request with the conversation that it names. recent: a response that it may continue besides those that
        are stored."""
        named = conversation_of(body)
        before = (await self.conversations.find(request.state.tenant, named)).items if named else []
        return await self._conversation(request, body, partial(openai_responses.parse, before=before), recent)

    async def _conversation(
        self,
        request: HTTPConnection,
        body: bytes,
        parse: Callable[..., Inbound],
        recent: ResponseRecord | None = None,
    ) -> Inbound:
        """The request with the items of stored responses that it refers to, and the response that it continues."""
        tenant, size = request.state.tenant, len(body)
        items = await self._items(tenant, await parse_beside(size, referenced, body))
        inbound = await parse_beside(
            size, parse, body, new_id=new_id, items=items, media=self.server.takes,
            open_seal=partial(opened, self.server, tenant),
        )  # fmt: skip
        if not isinstance(inbound.extra, Continuation):
            return inbound
        previous = inbound.extra.flags.previous or ""
        record = recent if recent is not None and recent.id == previous else None
        if record is None:
            record = await self._record(tenant, previous, "previous_response_id")
        if record.going_on:
            raise RequestError("invalid_request", "The previous response is not complete.", "previous_response_id")
        history: list[Message] = await collect_yielding(each_model(record.messages))
        return with_history(inbound, record.thread_id, history, new_id, record.flags.updates)

    async def _items(self, tenant: str, ids: list[str]) -> dict[str, dict[str, object]]:
        """Those of these items that are stored."""
        found: dict[str, dict[str, object]] = {}
        records: dict[str, ResponseRecord | None] = {}
        for item_id in ids:
            response_id = response_of(item_id)
            if response_id is None:
                continue
            if response_id not in records:
                records[response_id] = await self._stored(tenant, response_id)
            record = records[response_id]
            item = record.item(item_id) if record is not None else None
            if item is not None:
                found[item_id] = item
        return found

    def _identity(self, inbound: Inbound) -> ResponseIdentity:
        return ResponseIdentity(
            id=f"resp_{inbound.input.run_id.removeprefix('run_')}",
            model=model_name(self.server, inbound.options),
            created=int(time.time()),
            thread_id=inbound.input.thread_id,
            hidden_tools=servers_own(self.server, inbound),
        )

    # ---- keeping ----------------------------------------------------------------------------------------------------

    async def _keep(
        self, run: Run, identity: ResponseIdentity, inbound: Inbound, release: Callable[[], None]
    ) -> Keeping:
        """Keep the response from now on; the result waits until its end is kept, too, and then calls `release`."""
        record = _begun_record(run, identity, inbound.extra)
        await self._save(run.tenant, record)
        task = asyncio.create_task(self._keep_end(run, identity, record))
        self._keeping[run.tenant, record.id] = task
        task.add_done_callback(lambda _: self._keeping.pop((run.tenant, record.id), None))
        task.add_done_callback(lambda _: release())
        return Keeping(task)

    async def ended_record(self, run: Run, identity: ResponseIdentity, record: ResponseRecord) -> ResponseRecord:
        """The record with the answer, and with the conversation as the next request continues it."""
        events = so_far(run)
        if events is None:
            return msgspec.structs.replace(record, response=_lost(record, TOO_LONG))
        refused = isinstance(end := run.terminal, RunError) and end.code == "content_filter"
        messages = [] if refused else list(run.input.messages[1 if record.flags.instructions else 0 :])
        folded = fold_messages(events, await collect_yielding(each_dict(messages))).messages
        folded = shortened(self.server, run.tenant, folded)
        return msgspec.structs.replace(
            record,
            response=response_object(events, identity, record.flags),
            messages=[plain(message) for message in folded if message["role"] != "activity"],
        )

    async def _keep_end(self, run: Run, identity: ResponseIdentity, record: ResponseRecord) -> None:
        await run.wait()
        record = await self.ended_record(run, identity, record)
        try:
            await self._save(run.tenant, record)
            if record.flags.conversation and record.response["status"] in ("completed", "incomplete"):
                asked = [item for item in record.flags.items if item.get("type") != TRIGGER]
                said = [*asked, *record.response["output"]]
                await self.conversations.add(run.tenant, record.flags.conversation, said)
        except Exception:
            logger.exception("a response could not be kept")

    async def _save(self, tenant: str, record: ResponseRecord) -> None:
        await self.server.store.save_response(tenant, record.id, msgspec.to_builtins(record))

    async def _record(self, tenant: str, response_id: str, param: str = "response_id") -> ResponseRecord:
        found = await self._stored(tenant, response_id)
        if found is None:
            message = "There is no such response; it was not stored, or it was deleted."
            code = "previous_response_not_found" if param == "previous_response_id" else None
            raise RequestError("not_found", message, param, code=code)
        return found

    async def _stored(self, tenant: str, response_id: str) -> ResponseRecord | None:
        found = None if is_conversation(response_id) else await self.server.store.response(tenant, response_id)
        return None if found is None else msgspec.convert(found, ResponseRecord)

    async def count(self, request: Request) -> Response:
        inbound = await self._inbound(request, await read_body(request, self.server.settings.http.max_body))
        prompts = await loaded(self.server, inbound.options.model)
        tokens = await run_in_threadpool(prompt_tokens, prompts, inbound, "responses")
        return answer({"object": "response.input_tokens", "input_tokens": tokens})

    async def compact(self, request: Request) -> Response:
        body = await read_run_body(self.server, request)
        return await compact(self.server, request, await self._conversation(request, body, parse_compact))

    # ---- stored responses -------------------------------------------------------------------------------------------

    async def retrieve(self, request: Request) -> Response:
        record = await self._record(request.state.tenant, request.path_params["id"])
        query = read_query(request.query_params)
        run = await self._run(record, request.state.tenant) if record.going_on or query.stream else None
        if not query.stream:
            return answer(self._now(record, run))
        if run is None:
            message = "The events of this response have expired. Fetch it without stream."
            raise RequestError("invalid_request", message, "stream")
        encoder = ResponseStream(self._identity_of(record), record.flags, after=query.after)
        return await stream_answer(self.server, request, [run], encoder, wire="responses", hold=False)

    async def cancel(self, request: Request) -> Response:
        record = await self._record(request.state.tenant, request.path_params["id"])
        run = await self._run(record, request.state.tenant)
        if run is not None and not run.finished:
            await run.cancel()
            await run.wait()
        elif not record.response.get("background"):
            raise RequestError("invalid_request", "This response is not in progress, so it cannot be cancelled.")
        return answer(self._now(record, run))

    async def delete(self, request: Request) -> Response:
        tenant, response_id = request.state.tenant, request.path_params["id"]
        record = await self._record(tenant, response_id)
        if (run := await self._run(record, tenant)) is not None and not run.finished:
            await run.cancel()
            await run.wait()
            if (keeping := self._keeping.get((tenant, response_id))) is not None:  # of no other response
                await asyncio.wait({keeping})
        await self.server.store.delete_response(tenant, response_id)
        return Response(deleted_body(response_id), media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        record = await self._record(request.state.tenant, request.path_params["id"])
        return Response(item_list(record.items, request.query_params), media_type="application/json")

    async def _run(self, record: ResponseRecord, tenant: str) -> AnyRun | None:
        try:
            return await self.server.runs.find(record.run_id, tenant)
        except RequestError as error:
            if error.kind != "not_found":
                raise
            return None

    def _now(self, record: ResponseRecord, run: AnyRun | None) -> dict[str, object]:
        """The object as it stands: while its run goes on, what there is of it."""
        if not record.going_on:
            return record.response
        if run is None:
            return _lost(record, "The server stopped before the response was complete.")
        events = so_far(run)
        if events is None:
            return {**record.response, "status": "in_progress"}
        return response_object(events, self._identity_of(record), record.flags)

    def _identity_of(self, record: ResponseRecord) -> ResponseIdentity:
        declared = [str(tool.get("name")) for tool in record.response.get("tools") or ()]
        agent = self.server.agents[agent_for(self.server, record.agent)]
        return ResponseIdentity(
            id=record.id,
            model=record.response["model"],
            created=record.response["created_at"],
            thread_id=record.thread_id,
            hidden_tools=ServersOwn(agent, declared),
        )


class ResponsesConnection(Connection):
    """Responses over a WebSocket: each message asks for one response, whose events come as one message each. The last
    response can be continued, whether it is stored or not."""

    session: ResponsesSession

    def __init__(self, wire: Responses, websocket: WebSocket) -> None:
        super().__init__(wire.server, websocket)
        self.session = ResponsesSession(Limits(body=wire.server.settings.http.max_body))
        self._wire = wire
        self._connection = websocket
        self._recent: ResponseRecord | None = None

    def going_away(self) -> Sequence[object]:
        return self.session.refused(RequestError("unavailable", "The server is stopping; connect again."))

    def not_begun(self, error: RequestError) -> Sequence[object]:
        return self.session.refused(error)

    def broken(self) -> Sequence[object]:
        return self.session.refused(FAULT)

    async def perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    await self.send(data)
                case CreateResponse() if self.busy:
                    message = "A response is in progress on this connection. Wait until it is complete."
                    await self.perform(self.session.refused(RequestError("conflict", message)))
                case CreateResponse(body):
                    self.read(self._answer(body))
                case Close(code, reason):
                    await self.close(code, reason)

    async def _answer(self, body: bytes) -> None:
        if not await self.is_admitted():
            return
        conversation = conversation_of(body)
        release = _nothing
        try:
            if conversation:
                release = self._wire.conversations.take(self.tenant, conversation)
            inbound, identity, run, kept = await self._wire.begin(self._connection, body, self._recent, release)
        except (RequestError, EngineError) as error:
            release()
            refusal = error if isinstance(error, RequestError) else RequestError(error.kind, error.message, error.param)
            await self.perform(self.session.refused(refusal))
            return
        except BaseException:
            release()
            raise
        encoder = ResponseStream(identity, inbound.extra)
        async with contextlib.aclosing(run.events()) as events:
            async for _, event in events:
                if kept is not None and isinstance(event, ENDS):
                    await kept()
                await self.perform(self.session.frames(encoder.encode(event)))
        record = _begun_record(run, identity, inbound.extra)
        self._recent = await self._wire.ended_record(run, identity, record)


def _begun_record(run: Run, identity: ResponseIdentity, flags: ResponseFlags) -> ResponseRecord:
    return ResponseRecord(
        id=identity.id,
        agent=run.agent,
        run_id=run.id,
        thread_id=run.thread_id,
        response=response_object((), identity, flags),
        flags=flags,
    )


def _nothing() -> None:
    pass


def _lost(record: ResponseRecord, message: str) -> dict[str, object]:
    return {**record.response, "status": "failed", "error": {"code": "server_error", "message": message}}


class Keeping:
    """Call it to wait until a response's end is stored."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def __call__(self) -> None:
        await asyncio.shield(self._task)


def so_far(run: AnyRun) -> list[Event] | None:
    """The events of a run until now; None if the first ones are not kept any more."""
    if not run.log.whole:
        return None
    return [run.log.get(number) for number in range(run.log.begins + 1, run.log.last + 1)]


def plain(message: dict[str, object]) -> dict[str, object]:
    """A message without the metadata of its stream."""
    return {name: value for name, value in message.items() if name != "metadata"}


def answer(response: dict[str, Any]) -> Response:
    return Response(json_bytes(response), media_type="application/json")


def routes(server: Server) -> list[BaseRoute]:
    conversations = Conversations(server)
    wire = Responses(server, conversations)
    stored: list[tuple[str, str, Callable[[Request], Any]]] = [
        ("/v1/responses/{id}", "GET", wire.retrieve),
        ("/v1/responses/{id}", "DELETE", wire.delete),
        ("/v1/responses/{id}/cancel", "POST", wire.cancel),
        ("/v1/responses/{id}/input_items", "GET", wire.input_items),
    ]

    async def socket(websocket: WebSocket) -> None:
        await ResponsesConnection(wire, websocket).serve()

    return [
        WebSocketRoute("/v1/responses", socket),
        Route("/v1/responses", guarded(wire.create), methods=["POST"]),
        Route("/v1/responses/input_tokens", guarded(wire.count), methods=["POST"]),
        Route("/v1/responses/compact", guarded(wire.compact), methods=["POST"]),
        *(Route(path, guarded(endpoint), methods=[method]) for path, method, endpoint in stored),
        *conversation_routes(conversations),
    ]
