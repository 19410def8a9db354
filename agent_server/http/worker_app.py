"""The worker's HTTP application: one engine behind a few routes, and a shutdown that loses no generation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import (
    Delta,
    Engine,
    EngineError,
    EngineStatus,
    Failure,
    Finished,
    GenerationRequest,
    Usage,
)
from agent_server.engines.worker.frames import (
    COMPLETE_FINAL,
    KIND,
    PING,
    Command,
    Report,
    error_frame,
    frame_of,
)
from agent_server.http.auth import AuthMiddleware, Authority, Keys
from agent_server.http.middleware.origins import BrowserGuard, BrowserPolicy
from agent_server.http.routes.http import EventStream, GeneratedFrames, read_body
from agent_server.observability.telemetry import Telemetry

logger = logging.getLogger("agent_server.worker")
MAX_REQUEST = 64 * 2**20
"""Limit on a request's bytes; a prompt of a million tokens has eight million."""
PING_SECONDS = 5.0
"""Silence in a stream after which a ping is sent."""
STATUSES = {
    "invalid_request": 400, "context_length_exceeded": 400, "overloaded": 503, "unavailable": 503,
    "out_of_memory": 507,
}  # fmt: skip


class Worker:
    """One engine and its running generations. drain: seconds that these have to end after a signal."""

    def __init__(self, engine: Engine, *, drain: float = 30.0) -> None:
        self.engine = engine
        self.draining = False
        self._stopping = False
        self.failure: str | None = None
        self.telemetry = Telemetry()
        self.telemetry.watch_engine(self.metrics)
        self._drain_seconds = drain
        self._streams: dict[str, asyncio.Task[object] | None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.settled = asyncio.Event()
        self._cancelled: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # starting and stopping

    async def load(self) -> None:
        """Load the model and set `settled`. Never raises: an error's message is stored in `failure`."""
        try:
            await self.engine.start()
        except EngineError as error:
            self.failure = error.message
        self.settled.set()

    def begin_shutdown(self) -> None:
        """Refuse new generations, and end the running ones after the drain time. A second call ends them at once.

        Called by a signal handler on the event loop's thread.
        """
        if self._stopping:
            self._drain_seconds = 0.0
        self.draining = self._stopping = True
        task = asyncio.get_running_loop().create_task(self.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give running generations the drain time, then close the engine.

        The rest end with a retryable error, so that the gateway continues them on another replica.
        """
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._idle.wait()
        await self.engine.close()

    @property
    def status(self) -> EngineStatus:
        if self.failure is not None:
            return EngineStatus(state="failed", message=self.failure)
        if self.draining:
            return EngineStatus(state="stopped", message="The worker is draining.")
        return self.engine.status

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    def report(self) -> Report:
        status = self.status
        info = None
        with contextlib.suppress(EngineError):
            info = self.engine.info
        return Report(
            status=status, info=info, draining=self.draining, running=len(self._streams), metrics=self.metrics()
        )

    def metrics(self) -> dict[str, float]:
        return {
            **self.engine.metrics(),
            "worker_generations_running": float(len(self._streams)),
            "worker_draining": float(self.draining),
        }

    # generating

    async def frames(self, request: GenerationRequest) -> AsyncGenerator[bytes, None]:
        """The stream of one generation. Closing it cancels the generation."""
        self._streams[request.request_id] = asyncio.current_task()
        self._idle.clear()
        finished, count = False, len(request.generated)
        try:
            async with contextlib.aclosing(self.engine.generate(request)) as items:
                async for item in items:
                    finished = isinstance(item, Finished)
                    count += len(item.tokens) if isinstance(item, Delta) else 0
                    yield frame_of(item)
            if finished:
                yield COMPLETE_FINAL
        except asyncio.CancelledError:
            # Only a cancel command ends the stream properly; a client that left, or a shutdown, cancels the task as
            # usual.
            if request.request_id not in self._cancelled:
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            usage = Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=count)
            yield frame_of(Finished(reason="cancelled", usage=usage)) + COMPLETE_FINAL
        except EngineError as error:
            yield error_frame(error)
        except Exception:
            logger.exception("The engine raised an unexpected exception.")
            yield error_frame(EngineError("internal", "The worker's engine failed.", retryable=True))
        finally:
            self._streams.pop(request.request_id, None)
            self._cancelled.discard(request.request_id)
            if not self._streams:
                self._idle.set()

    async def execute(self, command: Command) -> bool:
        """Carry out a command. False if no generation with this id is running."""
        if command.request_id not in self._streams:
            return False
        if command.action == "modify":
            return await self.engine.modify(command.request_id, command.changes)
        if command.action == "pause":
            return await self.engine.pause(command.request_id)
        if command.action == "resume":
            return await self.engine.resume(command.request_id)
        self._cancelled.add(command.request_id)
        task = self._streams[command.request_id]
        return task.cancel() if task is not None else False


# routes

Endpoint = Callable[[Request], Awaitable[Response]]


def worker_app(worker: Worker, keys: Keys) -> Starlette:
    """The worker's application. If keys are set, the routes under `/engine/` require one."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(worker.load())
        try:
            yield
        finally:
            await worker.close()
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    return Starlette(
        routes=_routes(worker),
        middleware=[
            Middleware(BrowserGuard, policy=BrowserPolicy(pages=False)),
            Middleware(AuthMiddleware, authority=Authority(keys)),
        ],
        lifespan=lifespan,
    )


def _routes(worker: Worker) -> list[Route]:
    async def generate(request: Request) -> Response:
        generation = _decode(await read_body(request, MAX_REQUEST), GenerationRequest)
        if worker.draining:
            raise EngineError("unavailable", "The worker is draining.", retryable=True)
        return EventStream(
            GeneratedFrames(worker.frames(generation)),
            content_type="text/event-stream",
            keep_alive=lambda: PING,
            interval=PING_SECONDS,
        )

    async def control(request: Request) -> Response:
        return _json({"done": await worker.execute(_decode(await read_body(request, MAX_REQUEST), Command))})

    async def status(request: Request) -> Response:
        return _json(worker.report())

    async def info(request: Request) -> Response:
        return _json(worker.engine.info)

    async def drain(request: Request) -> Response:
        worker.draining = True
        return _json(worker.report())

    async def undrain(request: Request) -> Response:
        worker.draining = False
        return _json(worker.report())

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "engine": KIND})

    async def ready(request: Request) -> Response:
        status = worker.status
        good = status.state in ("ready", "degraded") and not status.silent
        return _json({"ready": good, "state": status.state, "message": status.message}, 200 if good else 503)

    async def metrics(request: Request) -> Response:
        return Response(worker.telemetry.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    posts: dict[str, Endpoint] = {"generate": generate, "control": control, "drain": drain, "undrain": undrain}
    gets: dict[str, Endpoint] = {"status": status, "info": info}
    return [
        *(Route(f"/engine/{name}", _guarded(endpoint), methods=["POST"]) for name, endpoint in posts.items()),
        *(Route(f"/engine/{name}", _guarded(endpoint), methods=["GET"]) for name, endpoint in gets.items()),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    ]


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Turn the endpoint's errors into a Failure as JSON, with the status that fits its kind."""

    async def handle(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestError as error:
            return _refusal(EngineError("invalid_request", error.message))
        except EngineError as error:
            return _refusal(error)

    return handle


def _refusal(error: EngineError) -> Response:
    return _json(Failure.of(error), STATUSES.get(error.kind, 500))


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _decode(body: bytes, expected: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=expected)
    except (ValueError, RecursionError) as error:
        raise EngineError("invalid_request", f"The body is not a valid {expected.__name__}: {error}") from None
