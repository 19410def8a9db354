"""OpenAI's Responses over HTTP and WebSocket: create, retrieve, resume, cancel, delete, list input items, compact."""

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
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from adapters import openai_responses
from adapters.answer import fold
from adapters.body import Inbound, Limits
from adapters.errors import RequestError
from adapters.openai_conversations import conversation_of
from adapters.openai_responses import (
    RESPONSE_PREFIX,
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
from adapters.websocket_messages import Close, Send
from agent_server.agents.compaction import INSTRUCTIONS, PIECE, SUMMARY, SealedView, pieces, transcript_of
from agent_server.agents.sealing import COMPACTION_THREAD
from agent_server.engine_protocol.protocol import EngineError
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.http.routes.answering import (
    CLIENT_GONE,
    ENDS,
    ServerToolNames,
    agent_for,
    collect,
    expected_context,
    model_for,
    model_name,
    request_error,
    server_tool_names,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.conversations_routes import Conversations, conversation_routes
from agent_server.http.routes.http import guarded, parse_off_loop, read_body, read_run_body
from agent_server.http.routes.tokenize_routes import loaded_prompts, prompt_tokens
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
"""Limit on a summary's tokens, if the model's context is large enough."""
PLACE = COMPACTION_THREAD
"""The thread and message id that summaries are sealed for."""


def open_compaction(server: Server, tenant: str, sealed: str) -> str | list[Message] | None:
    """Decrypt a compaction item.

    Returns the summary of `/v1/responses/compact`, or the messages that replace a conversation that was compacted
    during a run; None if the item was not sealed by this server for this tenant.
    """
    if (messages := sealed_messages(server, tenant, sealed)) is not None:
        return to_models(messages)
    return server.sealer.open(sealed, tenant=tenant, thread_id=PLACE, message_id=PLACE)


def sealed_messages(server: Server, tenant: str, sealed: str) -> list[dict[str, Any]] | None:
    """The messages, in wire form, that replace a conversation that was compacted during a run."""
    text = server.sealer.open_compacted(sealed, tenant=tenant)
    return None if text is None else msgspec.json.decode(text, type=SealedView).messages


def without_compacted(server: Server, tenant: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation after a run, in wire form, with the messages of the run's last compaction in place of older
    ones."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("activityType") == COMPACTED_ACTIVITY and (sealed := message["content"].get("sealed")):
            return [*(sealed_messages(server, tenant, sealed) or messages[:index]), *messages[index + 1 :]]
    return messages


async def compact(server: Server, request: Request, inbound: Inbound) -> Response:
    """Answer with a compacted conversation. inbound: the whole conversation. Raises RequestError."""
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
    """Summarises a conversation. usage: of all runs that this took."""

    def __init__(self, server: Server, request: Request, model: str | None, instructions: str) -> None:
        self._server = server
        self._request = request
        self._model = model
        self._instructions = f"{instructions}\n\n{INSTRUCTIONS}" if instructions else INSTRUCTIONS
        self.usage: list[TokenUsage] = []

    async def of(self, messages: Sequence[Message]) -> str:
        """Summarise messages. If one prompt cannot hold them, in pieces, each with the summary of the previous ones."""
        prompts = await loaded_prompts(self._server, self._model)
        length = await expected_context(model_for(self._server, self._model))
        context = length or SUMMARY_TOKENS * 10
        whole = "\n".join(map(transcript_of, messages))
        tokens = await REQUEST_THREADS.run(lambda: len(prompts.tokenize(whole, parse_control_tokens=False)))
        piece_bytes = int(PIECE * context * len(whole.encode()) / max(1, tokens))
        texts = await REQUEST_THREADS.run(pieces, messages, piece_bytes)
        summary = ""
        for text in texts:
            prompt = f"Summary of what was before:\n{summary}\n\n{text}" if summary else text
            summary = await self._run(prompt, max(1, min(SUMMARY_TOKENS, int(SUMMARY * context))))
        return summary

    async def _run(self, text: str, tokens: int) -> str:
        inbound = summary_run(self._model, self._instructions, text, tokens, new_id)
        answers = await collect(self._request, await start_runs(self._server, self._request, inbound))
        if answers is None:
            raise _ClientGone
        answer = fold(answers[0])
        self.usage.extend(answer.usage)
        if answer.error is not None:
            raise request_error(answer.error, "responses")
        if not answer.text.strip() or answer.finish not in ("stop", "length"):
            reason = f"it ended with {answer.finish}" if answer.text.strip() else "its answer was empty"
            raise RequestError("internal", f"The model made no summary of the conversation: {reason}.")
        return answer.text.strip()


logger = logging.getLogger("agent_server.responses")
NO_TIMEOUT = float("inf")
TOO_LONG = "The response exceeds the events that the server stores of a run."


class Responses:
    """The Responses API of one server: creates, stores and retrieves responses."""

    def __init__(self, server: Server, conversations: Conversations) -> None:
        self.server = server
        self.conversations = conversations
        self._final_writes: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def create(self, request: Request) -> Response:
        body = await read_run_body(self.server, request)
        conversation = conversation_of(body)
        release = self.conversations.lock(request.state.tenant, conversation) if conversation else _no_op
        try:
            inbound = await self._inbound(request, body)
            # release: the conversation, when the answer is added to it.
            flags: ResponseFlags = inbound.extra
            identity = self._identity(inbound)
            (run,) = await start_runs(self.server, request, inbound, grace=NO_TIMEOUT if flags.background else 0.0)
            final_write = await self._store_with_end(run, identity, inbound, release) if flags.store else None
            if inbound.stream:
                encoder = ResponseStream(identity, flags)
                hold = not flags.background
                return await stream_answer(
                    self.server, request, [run], encoder, wire="responses", hold=hold, before_end=final_write
                )
            if flags.background:
                return answer(response_object((), identity, flags))
            answers = await collect(request, [run])
            if answers is None:
                return Response(status_code=CLIENT_GONE)
            if final_write is not None:
                await final_write()
            body_object = response_object(answers[0], identity, flags)
            end = answers[0][-1]
            if isinstance(end, RunError) and not body_object["output"]:
                raise request_error(end, "responses")
            return answer(body_object)
        except BaseException:
            release()
            raise

    async def begin(
        self, connection: HTTPConnection, body: bytes, recent: ResponseRecord | None, release: Callable[[], None]
    ) -> tuple[Inbound, ResponseIdentity, Run, FinalWrite | None]:
        """Start a response that is requested over a WebSocket. Raises RequestError."""
        inbound = await self._inbound(connection, body, recent)
        if inbound.extra.background:
            raise RequestError("invalid_request", "background is not supported on a WebSocket. Use HTTP.", "background")
        identity = self._identity(inbound)
        (run,) = await start_runs(self.server, connection, inbound)
        final_write = await self._store_with_end(run, identity, inbound, release) if inbound.extra.store else None
        return inbound, identity, run, final_write

    async def _inbound(self, request: HTTPConnection, body: bytes, recent: ResponseRecord | None = None) -> Inbound:
        """Parse a request, with the conversation that it names.

        recent: an unstored response that it may continue.
        """
        named = conversation_of(body)
        if named is None:
            return await self._conversation(request, body, openai_responses.parse, recent)
        record = await self.conversations.find(request.state.tenant, named)
        parse = partial(openai_responses.parse, before=record.items, answered_until=record.answered_until())
        pending = record.pending.response_id if record.pending is not None else None
        return await self._conversation(request, body, parse, recent, pending)

    async def _conversation(
        self,
        request: HTTPConnection,
        body: bytes,
        parse: Callable[..., Inbound],
        recent: ResponseRecord | None = None,
        pending: str | None = None,
    ) -> Inbound:
        """Parse a request, with the items of stored responses that it refers to and the response that it continues.

        pending: the response of a conversation that a request with approvals continues.
        """
        tenant, size = request.state.tenant, len(body)
        items: dict[str, dict[str, object]] = {}  # unknown ones are omitted
        responses: dict[str, ResponseRecord | None] = {}
        for item_id in await parse_off_loop(size, referenced, body):
            if (response_id := response_of(item_id)) is None:
                continue
            if response_id not in responses:
                responses[response_id] = await self._stored(tenant, response_id)
            response = responses[response_id]
            if response is not None and (item := response.item(item_id)) is not None:
                items[item_id] = item
        inbound = await parse_off_loop(
            size, parse, body, new_id=new_id, items=items, media=self.server.takes,
            open_seal=partial(open_compaction, self.server, tenant),
        )  # fmt: skip
        if not isinstance(inbound.extra, Continuation):
            return inbound
        previous = inbound.extra.flags.previous
        record = recent if recent is not None and recent.id == previous else None
        if record is None:
            param = "previous_response_id" if previous else "conversation"
            record = await self._record(tenant, previous or pending or "", param)
        if record.is_in_progress:
            raise RequestError("invalid_request", "The previous response is not complete.", "previous_response_id")
        history: list[Message] = await collect_yielding(each_model(record.messages))
        return with_history(inbound, record.thread_id, history, new_id, record.flags)

    def _identity(self, inbound: Inbound) -> ResponseIdentity:
        return ResponseIdentity(
            id=f"{RESPONSE_PREFIX}{inbound.input.run_id.removeprefix('run_')}",
            model=model_name(self.server, inbound.options),
            created=int(time.time()),
            thread_id=inbound.input.thread_id,
            hidden_tools=server_tool_names(self.server, inbound),
        )

    # ---- storing ----------------------------------------------------------------------------------------------------

    async def _store_with_end(
        self, run: Run, identity: ResponseIdentity, inbound: Inbound, release: Callable[[], None]
    ) -> FinalWrite:
        """Store the response now, and again when it has ended; `release` is called after that.

        Calling the result waits for the second write.
        """
        record = _new_record(run, identity, inbound.extra)
        await self._save(run.tenant, record)
        task = asyncio.create_task(self._write_final_record(run, identity, record))
        self._final_writes[run.tenant, record.id] = task
        task.add_done_callback(lambda _: self._final_writes.pop((run.tenant, record.id), None))
        task.add_done_callback(lambda _: release())
        return FinalWrite(task)

    async def final_record(self, run: Run, identity: ResponseIdentity, record: ResponseRecord) -> ResponseRecord:
        """The record with the answer, and with the conversation that the next request continues."""
        events = events_so_far(run)
        if events is None:
            return msgspec.structs.replace(record, response=_failed_response(record, TOO_LONG))
        refused = isinstance(end := run.terminal, RunError) and end.code == "content_filter"
        messages = [] if refused else list(run.input.messages[1 if record.flags.instructions else 0 :])
        folded = fold_messages(events, await collect_yielding(each_dict(messages))).messages
        folded = without_compacted(self.server, run.tenant, folded)
        return msgspec.structs.replace(
            record,
            response=response_object(events, identity, record.flags),
            messages=[plain(message) for message in folded if message["role"] != "activity"],
        )

    async def _write_final_record(self, run: Run, identity: ResponseIdentity, record: ResponseRecord) -> None:
        await run.wait()
        record = await self.final_record(run, identity, record)
        try:
            await self._save(run.tenant, record)
            if record.flags.conversation and record.response["status"] in ("completed", "incomplete"):
                input_items = [item for item in record.flags.items if item.get("type") != TRIGGER]
                await self.conversations.add(
                    run.tenant, record.flags.conversation, record.id, input_items, record.response["output"]
                )
        except Exception:
            logger.exception("a response could not be stored")

    async def _save(self, tenant: str, record: ResponseRecord) -> None:
        await self.server.store.save_response(tenant, record.id, msgspec.to_builtins(record))

    async def _record(self, tenant: str, response_id: str, param: str = "response_id") -> ResponseRecord:
        record = await self._stored(tenant, response_id)
        if record is None:
            message = "There is no such response. It was not stored, or it was deleted."
            code = "previous_response_not_found" if param == "previous_response_id" else None
            raise RequestError("not_found", message, param, code=code)
        return record

    async def _stored(self, tenant: str, response_id: str) -> ResponseRecord | None:
        if not response_id.startswith(RESPONSE_PREFIX):
            return None
        body = await self.server.store.response(tenant, response_id)
        return None if body is None else msgspec.convert(body, ResponseRecord)

    async def count(self, request: Request) -> Response:
        inbound = await self._inbound(request, await read_body(request, self.server.settings.http.max_body))
        prompts = await loaded_prompts(self.server, inbound.options.model)
        tokens = await prompts.run(partial(prompt_tokens, prompts, inbound, "responses"))
        return answer({"object": "response.input_tokens", "input_tokens": tokens})

    async def compact(self, request: Request) -> Response:
        body = await read_run_body(self.server, request)
        return await compact(self.server, request, await self._conversation(request, body, parse_compact))

    # ---- stored responses -------------------------------------------------------------------------------------------

    async def retrieve(self, request: Request) -> Response:
        record = await self._record(request.state.tenant, request.path_params["id"])
        query = read_query(request.query_params)
        run = await self._run(record, request.state.tenant) if record.is_in_progress or query.stream else None
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
            if (
                final_write := self._final_writes.get((tenant, response_id))
            ) is not None:  # waits for this response only
                await asyncio.wait({final_write})
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
        """The response object; while its run is active, the part that exists so far."""
        if not record.is_in_progress:
            return record.response
        if run is None:
            return _failed_response(record, "The server stopped before the response was complete.")
        events = events_so_far(run)
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
            hidden_tools=ServerToolNames(agent, declared),
        )


class ResponsesConnection(Connection):
    """Responses over a WebSocket: each message requests one response, and each of its events is sent as one message.

    The last response can be continued even if it is not stored.
    """

    session: ResponsesSession

    def __init__(self, wire: Responses, websocket: WebSocket) -> None:
        super().__init__(wire.server, websocket)
        self.session = ResponsesSession(Limits(body=wire.server.settings.http.max_body))
        self._wire = wire
        self._connection = websocket
        self._recent: ResponseRecord | None = None

    def going_away(self) -> Sequence[object]:
        return self.session.on_refused(RequestError("unavailable", "The server is shutting down. Connect again."))

    def refusal(self, error: RequestError) -> Sequence[object]:
        return self.session.on_refused(error)

    def internal_error(self) -> Sequence[object]:
        return self.session.on_refused(FAULT)

    async def perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    await self.send(data)
                case CreateResponse() if self.busy:
                    message = "A response is in progress on this connection. Wait until it is complete."
                    await self.perform(self.session.on_refused(RequestError("conflict", message)))
                case CreateResponse(body):
                    self.read(self._answer(body))
                case Close(code, reason):
                    await self.close(code, reason)

    async def _answer(self, body: bytes) -> None:
        if not await self.is_admitted():
            return
        conversation = conversation_of(body)
        release = _no_op
        try:
            if conversation:
                release = self._wire.conversations.lock(self.tenant, conversation)
            inbound, identity, run, final_write = await self._wire.begin(self._connection, body, self._recent, release)
        except (RequestError, EngineError) as error:
            release()
            refusal = error if isinstance(error, RequestError) else RequestError(error.kind, error.message, error.param)
            await self.perform(self.session.on_refused(refusal))
            return
        except BaseException:
            release()
            raise
        encoder = ResponseStream(identity, inbound.extra)
        async with contextlib.aclosing(run.events()) as events:
            async for _, event in events:
                if final_write is not None and isinstance(event, ENDS):
                    await final_write()
                await self.perform(self.session.frames(encoder.encode(event)))
        record = _new_record(run, identity, inbound.extra)
        self._recent = await self._wire.final_record(run, identity, record)


def _new_record(run: Run, identity: ResponseIdentity, flags: ResponseFlags) -> ResponseRecord:
    return ResponseRecord(
        id=identity.id,
        agent=run.agent,
        run_id=run.id,
        thread_id=run.thread_id,
        response=response_object((), identity, flags),
        flags=flags,
    )


def _no_op() -> None:
    pass


def _failed_response(record: ResponseRecord, message: str) -> dict[str, object]:
    return {**record.response, "status": "failed", "error": {"code": "server_error", "message": message}}


class FinalWrite:
    """Call it to wait until a response's final record is stored."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def __call__(self) -> None:
        await asyncio.shield(self._task)


def events_so_far(run: AnyRun) -> list[Event] | None:
    """The events of a run so far; None if the first ones have been dropped from its log."""
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
        *(
            Route(path, guarded(endpoint, server.reads if method == "GET" else None), methods=[method])
            for path, method, endpoint in stored
        ),
        *conversation_routes(conversations),
    ]
