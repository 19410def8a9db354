"""The WebSockets of the generation protocol, at `/generate`, and of AG-UI, at `/agui/ws`.

The adapters' sessions decide what is sent and when; this module transfers bytes, and starts, reads and controls runs.
Two tasks serve a connection: one receives messages, the other reads the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from adapters import agui
from adapters import generate as generation
from adapters.body import Inbound, Limits, Notes, notes_of_request, noting
from adapters.errors import RequestError
from adapters.openai_responses import ResponsesSession
from adapters.websocket_messages import Close, Send
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.auth.admission import admit_again, has_expired
from agent_server.http.routes.answering import agent_for, app_answer
from agent_server.http.routes.generate_routes import generate_identity
from agent_server.http.routes.http import parse_off_loop
from agent_server.ids import new_id
from events.vocabulary import LOADING_EVENT, Custom, RunError, RunFinished, TextMessageStart

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun

logger = logging.getLogger("agent_server.websocket")
IDLE_SECONDS = 600.0
"""A connection without a run or a message is closed after this time."""
LOOK_SECONDS = 1.0
WAITING_FEEDBACK = 64
"""Limit on feedback for a message that is still being generated; it is held in memory until then."""
CLOSE_DONE, CLOSE_POLICY, CLOSE_INTERNAL = 1000, 1008, 1011
CLOSE_LOST = 1006
"""Never sent: RFC 6455, 7.4.1, for a connection that was lost without a close frame."""


class Connection(ABC):
    """Shared by the protocols: receiving, sending, one run at a time."""

    session: generation.GenerationSession | agui.AguiSession | ResponsesSession

    def __init__(self, server: Server, websocket: WebSocket) -> None:
        self.server = server
        self.tenant: str = websocket.state.tenant
        self.run: AnyRun | None = None
        self._websocket = websocket
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def serve(self) -> None:
        """Serve until either side closes.

        An unexpected error is reported to the client before the connection is closed.
        """
        await self._websocket.accept()
        try:
            quiet = time.monotonic()
            receiving = asyncio.ensure_future(self._websocket.receive())
            try:
                while not self._closed:
                    done, _ = await asyncio.wait({receiving}, timeout=LOOK_SECONDS)
                    if done:
                        quiet = time.monotonic()
                        message, receiving = receiving.result(), asyncio.ensure_future(self._websocket.receive())
                        await self._receive(message)
                    elif not self.busy and self.server.closing:
                        await self.perform(self.going_away())
                    elif not self.busy and has_expired(self._websocket.scope):
                        await self.close(CLOSE_POLICY, "the key has expired")
                    elif not self.busy and time.monotonic() - quiet > IDLE_SECONDS:
                        await self.close(CLOSE_DONE, "idle")
            finally:
                receiving.cancel()
                with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                    await receiving
        except WebSocketDisconnect:
            pass
        except Exception:
            logger.exception("unhandled error on a WebSocket")
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
                await self.perform(self.internal_error())
                await self.close(CLOSE_INTERNAL, "internal error")
        finally:
            await self.stop_reading()

    async def _receive(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        data = message.get("text")
        data = message["bytes"] if data is None else data
        # Only parsing may run in a thread: a session's state belongs to the event loop, where the run's events arrive.
        # Each of a connection's messages has notes of its own, which the task of its run inherits.
        with noting(Notes(strict=self.server.settings.http.strict_fields, count=self.server.telemetry.ignored)):
            read = await parse_off_loop(len(data), self.session.read, data)
            await self.perform(self.session.take(read))

    async def is_admitted(self) -> bool:
        """Whether the connection's key may still start a run. If not, an error is sent; an invalid key also closes the
        connection."""
        try:
            await admit_again(self._websocket.scope, self.server.authority)
        except RequestError as error:
            await self.perform(self.refusal(error))
            if error.kind == "unauthorized":
                await self.close(CLOSE_POLICY, "the key has expired or was revoked")
            return False
        return True

    @property
    def busy(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def send(self, data: bytes) -> None:
        if self._closed:
            return
        if self._websocket.application_state is not WebSocketState.CONNECTED:  # an earlier send failed
            raise WebSocketDisconnect(CLOSE_LOST)
        await self._websocket.send({"type": "websocket.send", "text": data.decode()})

    async def close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            await self._websocket.close(code, reason)

    def read(self, work: Coroutine[object, object, None]) -> None:
        self._reading = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (WebSocketDisconnect, OSError, RuntimeError):
            logger.debug("a WebSocket's client disconnected during a send")
        except Exception:
            logger.exception("reading a run for a WebSocket failed")
            with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):
                await self.perform(self.internal_error())
                await self.close(CLOSE_INTERNAL, "internal error")

    async def stop_reading(self) -> None:
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    async def control(self, action: str, changes: dict[str, object]) -> bool:
        """Pause, resume, modify or cancel the run. False if that is not possible.

        Raises RequestError for an unknown parameter or a value out of range.
        """
        if self.run is None:
            return False
        match action:
            case "pause":
                return await self.run.pause()
            case "resume":
                return await self.run.resume()
            case "modify":
                return await self.run.modify(changes)
        return await self.run.cancel()

    # implemented by each protocol

    @abstractmethod
    def going_away(self) -> Sequence[object]:
        """The actions when the server shuts down."""

    @abstractmethod
    def refusal(self, error: RequestError) -> Sequence[object]:
        """The actions when a run is refused."""

    @abstractmethod
    def internal_error(self) -> Sequence[object]:
        """The actions after an unexpected error in the server."""

    @abstractmethod
    async def perform(self, actions: Sequence[object]) -> None:
        """Perform a session's actions in order."""


FAULT = RequestError("internal", "Internal server error. The server's log has the details.")


class GenerateConnection(Connection):
    """The generation protocol."""

    session: generation.GenerationSession

    def __init__(self, server: Server, websocket: WebSocket) -> None:
        super().__init__(server, websocket)
        limits = Limits(body=server.settings.http.max_body)
        self.session = generation.GenerationSession(new_id=new_id, clock=time.monotonic, limits=limits)
        self._message_id: str | None = None
        self._feedback: list[generation.Feedback] = []

    def going_away(self) -> Sequence[object]:
        return self.session.going_away()

    def refusal(self, error: RequestError) -> Sequence[object]:
        return self.session.on_refused(error)

    def internal_error(self) -> Sequence[object]:
        return self.session.on_refused(FAULT)

    async def perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    await self.send(data)
                case generation.Start(inbound):
                    self.run = None
                    self.read(self._generate(inbound))
                case generation.Stop() if self.run is not None:
                    await self.run.cancel()
                case generation.Stop():
                    await self.stop_reading()
                    await self.perform(self.session.on_abandoned())
                case generation.ControlRun(name, changes):
                    await self._control(name, changes)
                case generation.Feedback():
                    if len(self._feedback) < WAITING_FEEDBACK:
                        self._feedback.append(action)
                    else:
                        message = (
                            f"At most {WAITING_FEEDBACK} feedbacks may wait for a message. Send this one when the "
                            "message is complete."
                        )
                        await self.perform(self.session.on_refused(RequestError("rate_limited", message)))
                    if self.run is not None and self.run.finished:
                        await self._keep_feedback(self.run)
                case Close(code, reason):
                    await self.close(code, reason)

    async def _generate(self, inbound: Inbound) -> None:
        if not await self.is_admitted():
            return
        try:
            # Wait for the model, reporting its loading progress, and start the run.
            agent = agent_for(self.server, inbound.options.model)
            async for status in self.server.model_of(agent).states():
                if status.state in ("starting", "loading"):
                    await self.perform(self.session.loading(status.progress, status.message or "Loading the model."))
                elif status.state in ("failed", "stopped"):
                    raise RequestError("unavailable", status.message or "The model could not be loaded.")
            self._message_id = None
            run = self.run = await self.server.runs.start(
                inbound.input,
                inbound.options,
                agent=agent,
                tenant=self.tenant,
                grace=0.0,
                whole=True,
                warnings=notes_of_request().warnings,
            )
        except RequestError as error:
            await self.perform(self.session.on_refused(error))
            return
        await self.perform(self.session.on_started(generate_identity(self.server, inbound)))
        async with contextlib.aclosing(run.events()) as events:
            async for _, event in events:
                if isinstance(event, TextMessageStart):
                    self._message_id = event.message_id
                if isinstance(event, RunFinished | RunError):
                    await self._keep_feedback(run)
                if isinstance(event, Custom) and event.name == LOADING_EVENT:
                    value = event.value
                    await self.perform(self.session.loading(value.get("progress"), value["message"] or "Loading."))
                elif actions := self.session.event(event):
                    await self.perform(actions)

    async def _control(self, action: generation.ControlAction, changes: dict[str, object]) -> None:
        try:
            done = await self.control(action, changes)
        except (RequestError, EngineError) as error:
            kind = RequestError(error.kind, error.message, error.param)
            await self.perform(self.session.on_refused(kind))
            return
        await self.perform(self.session.controlled(action, done))

    async def _keep_feedback(self, run: AnyRun) -> None:
        """Store the feedback that arrived while the message was being generated. Called when the message is stored."""
        waiting, self._feedback = self._feedback, []
        for each in waiting:
            try:
                if self._message_id is None:
                    raise RequestError("not_found", "There is no message yet to give feedback on.")
                await self.server.store.give_feedback(
                    self.tenant, run.thread_id, self._message_id, each.rating, each.text or "", each.position
                )
            except RequestError as error:
                await self.perform(self.session.on_refused(error))
            else:
                await self.perform(self.session.feedback_stored())


class AguiConnection(Connection):
    """AG-UI."""

    session: agui.AguiSession

    def __init__(self, server: Server, websocket: WebSocket) -> None:
        super().__init__(server, websocket)
        self.session = agui.AguiSession(limits=Limits(body=server.settings.http.max_body), media=lambda: server.takes)

    def going_away(self) -> Sequence[object]:
        return self.session.going_away()

    def refusal(self, error: RequestError) -> Sequence[object]:
        return self.session.not_started(error)

    def internal_error(self) -> Sequence[object]:
        return self.session.not_started(FAULT)

    async def perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    await self.send(data)
                case agui.StartRun(inbound, agent):
                    self.read(self._run(inbound, agent))
                case agui.Subscribe(run_id, after):
                    self.read(self._subscribe(run_id, after))
                case agui.ControlRun(name, changes):
                    await self._control(name, changes)
                case Close(code, reason):
                    await self.close(code, reason)

    async def _run(self, inbound: Inbound, agent: str) -> None:
        if not await self.is_admitted():
            return
        try:
            if (answer := app_answer(self.server, agent, inbound)) is not None:
                await self.server.quotas.answer_app(self.tenant)
                self.run = None
                async for event in answer:
                    await self.perform(self.session.event(event))
                return
            self.run = await self.server.runs.start(
                inbound.input,
                inbound.options,
                agent=agent,
                tenant=self.tenant,
                grace=self.server.settings.runs.grace,
                warnings=[*inbound.extra.warnings, *notes_of_request().warnings],
            )
        except RequestError as error:
            await self.perform(self.session.not_started(error))
            return
        await self._follow(self.run, 0)

    async def _subscribe(self, run_id: str, after: int) -> None:
        if not await self.is_admitted():
            return
        try:
            self.run = await self.server.runs.find(run_id, self.tenant)
            await self._follow(self.run, after)
        except RequestError as error:
            await self.perform(self.session.not_started(error))

    async def _follow(self, run: AnyRun, after: int) -> None:
        async with contextlib.aclosing(run.events(after)) as events:
            async for _, event in events:
                await self.perform(self.session.event(event))

    async def _control(self, action: agui.ControlAction, changes: dict[str, object]) -> None:
        try:
            done = await self.control(action, changes)
        except (RequestError, EngineError) as error:
            await self.perform(self.session.on_refused(RequestError(error.kind, error.message, error.param)))
            return
        await self.perform(self.session.controlled(action, done))


def routes(server: Server) -> list[BaseRoute]:
    async def generate(websocket: WebSocket) -> None:
        await GenerateConnection(server, websocket).serve()

    async def agui_socket(websocket: WebSocket) -> None:
        await AguiConnection(server, websocket).serve()

    return [WebSocketRoute("/generate", generate), WebSocketRoute("/agui/ws", agui_socket)]
