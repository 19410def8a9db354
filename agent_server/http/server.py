"""The server's components, with their startup and shutdown. This module does not depend on HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from adapters.body import KINDS
from adapters.errors import RequestError
from agent_server.agents.sealing import Sealer
from agent_server.engine_protocol.protocol import EngineStatus
from agent_server.fair_slots import FairSlots
from agent_server.http.auth import Authority, Quotas
from agent_server.models.downloads import Downloads
from agent_server.models.pool import AdaptedModel
from agent_server.observability.audit import AuditLog, note, use_audit
from agent_server.observability.telemetry import ServerTelemetry
from agent_server.runs.store.connections import StoreUnavailable
from agent_server.runs.store.removal import Erasure, RemovalScope, Retention
from agent_server.settings import Settings

if TYPE_CHECKING:
    from ag_ui.core import AgentCapabilities

    from adapters.forwarded_props import ProxiedRequest
    from agent_server.agents.guardrails import Guards
    from agent_server.agents.mcp.mcp_tools import McpConnections
    from agent_server.engines.embeddings import Embeddings
    from agent_server.engines.reranking import Reranker
    from agent_server.engines.transcription import Transcriber
    from agent_server.models.model import ChatModel
    from agent_server.models.pool import AnyModel, ModelPool, PooledModel
    from agent_server.runs import Ending, RunContext, RunManager, User
    from agent_server.runs.store import Store
    from agent_server.runs.webhooks import Webhooks

logger = logging.getLogger("agent_server")
BUNDLED = Path(__file__).parents[1] / "models" / "demo"
BUNDLED_NAME = "agent-server-demo"
READS = 1
"""Requests that may read stored content of any length at once: decoding and encoding 3.5 MB takes about 7 ms, and with
four at once another tenant's slowest requests took two to three times as long."""
ERASURE_PAUSE_SECONDS = 5.0


class StartupError(Exception):
    """The server cannot start. The message is one sentence for the operator."""


class ServableAgent(Protocol):
    """An agent as the routes see it: one of this package's own, or a guest."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def model_name(self) -> str: ...

    @property
    def announces_a2ui(self) -> bool: ...
    @property
    def is_hosted(self) -> bool: ...
    @property
    def mcp(self) -> McpConnections | None: ...
    @property
    def guards(self) -> Guards | None: ...

    def capabilities(self) -> AgentCapabilities: ...

    def answers_call(self, name: str, declared: Collection[str]) -> bool:
        """Whether the server answers calls of this tool itself. declared: names of the client's tools."""

    async def answer_app(self, request: ProxiedRequest, user: User) -> Mapping[str, object]:
        """Answer a request that an MCP app's page makes to its server: the MCP result, or an error."""

    async def run(self, context: RunContext) -> Ending: ...

    async def close(self) -> None: ...


@dataclass
class Server:
    """Everything that the routes need. A process has one; tests build their own.

    model: the first model. models: all models by name, including LoRA adapters. pool: loads and unloads several models;
    None if there is one, which stays loaded.
    """

    settings: Settings
    model: ChatModel | PooledModel
    agents: MutableMapping[str, ServableAgent]
    runs: RunManager
    store: Store
    telemetry: ServerTelemetry
    authority: Authority
    quotas: Quotas
    embeddings: Embeddings | None = None
    reranker: Reranker | None = None
    transcriber: Transcriber | None = None
    models: MutableMapping[str, AnyModel] = field(default_factory=dict)
    pool: ModelPool | None = None
    audit: AuditLog | None = None
    webhooks: Webhooks | None = None
    make_agent: Callable[[str, AnyModel], ServableAgent] | None = None
    """Makes an agent without tools for a model that is added while the server runs."""
    make_model: Callable[[Settings, str | None], tuple[Settings, ChatModel]] | None = None
    """Makes a model that replaces the first, or that one again (source None); None if switching is not allowed."""
    downloads: Downloads = field(default_factory=Downloads)
    switch_fault: str = ""
    """Why the last requested model could not be loaded; "" if it could."""
    reads: FairSlots = field(default_factory=lambda: FairSlots(READS))
    """Held by requests that read stored content of any length."""
    sealer: Sealer = field(default_factory=Sealer)
    """Encrypts values that clients store for this server."""
    closing: bool = False
    on_stop: Callable[[], None] | None = None
    on_close: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called by `close` once no run is active, while the store is still open."""
    _starting: asyncio.Task[None] | None = None
    _loading: asyncio.Task[None] | None = None
    _switching: asyncio.Task[None] | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _erasing: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def auxiliary_models(self) -> list[Embeddings | Reranker | Transcriber]:
        """The served models that do not chat."""
        return [each for each in (self.embeddings, self.reranker, self.transcriber) if each is not None]

    @property
    def several(self) -> bool:
        """Whether the server was started with several models: each name then selects that model without an agent."""
        return self.pool is not None and len(self.pool.models) > 1

    def model_of(self, agent: str) -> AnyModel:
        """Return an agent's model, or the model of that name; the first model if there is neither."""
        name = self.agents[agent].model_name if agent in self.agents else agent
        return self.models.get(name, self.model)

    async def load_adapter(self, name: str, folder: str, base: str = "") -> None:
        """Serve a LoRA adapter as a model of its own.

        base: the name of the model that it was trained for; "" for the first. Raises RequestError or EngineError.
        """
        root = self.models.get(base or self.model.name)
        if root is None or isinstance(root, AdaptedModel):
            raise RequestError("not_found", f"There is no model named {base!r}.", "model")
        existing = self.models.get(name)
        if (name in self.agents or name in self.models) and not isinstance(existing, AdaptedModel):
            raise RequestError("conflict", f"The name {name!r} is already that of a model or an agent.", "name")
        if isinstance(existing, AdaptedModel) and existing.root is not root:
            raise RequestError("conflict", f"The name {name!r} is already that of another model's adapter.", "name")
        assert self.make_agent is not None
        adapter = AdaptedModel(name, root)
        try:
            agent = self.make_agent(name, adapter)
        except ValueError as error:
            raise RequestError("invalid_request", f"{error}.", "name") from None
        await root.load_adapter(name, folder)
        self.models[name], self.agents[name] = adapter, agent

    def switch_model(self, source: str) -> None:
        """Replace the loaded model. source: a folder, a GGUF file or a hub name.

        Returns before the new model is loaded. If loading fails, the previous model is loaded again, and `switch_fault`
        has the reason. Raises RequestError.
        """
        if self.make_model is None:
            raise RequestError("forbidden", "Changing the model is turned off. Set AGENT_SERVER_MODELS_CHANGE=on.")
        if self._switching is not None or self.model.status.state in ("starting", "loading"):
            raise RequestError("conflict", "A model is loading. Try again when it is ready.")
        if self.runs.active:
            raise RequestError("conflict", "A run is active. Try again when it has ended.")
        try:
            settings, new_model = self.make_model(self.settings, source)
        except StartupError as error:
            raise RequestError("invalid_request", str(error), "source") from None
        note("model.switched", model=new_model.name)
        self.switch_fault = ""
        self._switching = self.spawn(self._switch(settings, new_model))
        self._switching.add_done_callback(lambda _: setattr(self, "_switching", None))

    async def _switch(self, settings: Settings, new_model: ChatModel) -> None:
        previous, requested_name = self.settings, new_model.name
        await self._replace_model(settings, new_model)
        if self.failed:
            assert self.make_model is not None
            self.switch_fault = f"{requested_name} could not be loaded. {self.model.status.message}"
            logger.error("%s", self.switch_fault)
            await self._replace_model(previous, self.make_model(previous, None)[1])

    async def _replace_model(self, settings: Settings, new_model: ChatModel) -> None:
        model = cast("ChatModel", self.model)  # several models are not switched
        self.models.pop(model.name, None)
        self.models[new_model.name] = model
        self.settings = settings
        await model.become(new_model)

    async def remove_adapter(self, name: str) -> None:
        """Stop serving an adapter; generations that use it end."""
        adapter = self.models.get(name)
        if not isinstance(adapter, AdaptedModel):
            raise RequestError("not_found", f"There is no adapter named {name!r}.", "name")
        del self.models[name]
        self.agents.pop(name, None)
        await adapter.root.remove_adapter(name)

    @property
    def takes(self) -> frozenset[str]:
        """Kinds of content besides text that at least one model accepts. Hosted agents have models of their own."""
        if any(agent.is_hosted for agent in self.agents.values()):
            return frozenset(KINDS)
        if self.pool is None:
            return self.model.takes
        return frozenset().union(*(model.takes for model in self.pool.models.values()))

    @property
    def status(self) -> EngineStatus:
        """Whether requests can be answered. A pool is ready once one model was loaded; it loads others on request."""
        status = self.model.status
        if self.pool is None or not self.pool.any_loaded:
            return status
        return EngineStatus(state="ready", progress=1.0)

    @property
    def mcp(self) -> McpConnections | None:
        """The MCP servers of the agents; None if they have none."""
        return next((agent.mcp for agent in self.agents.values() if agent.mcp is not None), None)

    def capabilities(self, agent: str) -> AgentCapabilities:
        """An agent's capabilities on this server. Raises EngineError while its model is not loaded."""
        from ag_ui.core import ExecutionCapabilities, TransportCapabilities

        capabilities = self.agents[agent].capabilities()
        sends_webhooks = self.webhooks is not None and self.webhooks.sends
        milliseconds = round(self.settings.runs.run_seconds * 1000)
        transport = capabilities.transport or TransportCapabilities()
        execution = capabilities.execution or ExecutionCapabilities()
        return capabilities.model_copy(
            update={
                "transport": transport.model_copy(update={"push_notifications": sends_webhooks}),
                "execution": execution.model_copy(update={"max_execution_time": milliseconds}),
            }
        )

    @property
    def started(self) -> bool:
        """Whether `start` has completed successfully."""
        starting = self._starting
        return starting is not None and starting.done() and not starting.cancelled() and starting.exception() is None

    async def start(self) -> None:
        """Open the store and start loading the model in the background; routes report the progress meanwhile.

        Further calls wait for the first and start again only if it failed. Raises StartupError.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        # Unlike `await starting`, asyncio.wait does not cancel the shared task when one of its callers is cancelled.
        if not starting.done():
            await asyncio.wait((starting,))
        if starting.cancelled() or starting.exception() is not None:
            self._starting = None
        starting.result()

    async def _start(self) -> None:
        if self._loading is None and (self.pool is None or not self.pool.any_loaded):
            self._loading = self.spawn(self.model.load())
        try:
            await self.store.open()
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StartupError(f"The store at {self.store.place} cannot be opened: {reason}") from error
        await self.runs.open()
        if self.authority.file is not None:
            self.spawn(self.authority.file.watch())

        async def model_ready() -> None:
            """Wait until the model is ready or has failed to load. Models of a pool are loaded on request."""
            if self.pool is None:
                async for _ in self.model.states():
                    pass

        self.runs.when_ready = model_ready
        self.spawn(self.runs.resume_orphans())
        for erasure in await self.store.take_over_erasures():
            self._begin_erasure(erasure)
        if self.webhooks is not None:
            self.webhooks.start()
        for auxiliary in self.auxiliary_models:
            self.spawn(auxiliary.start())
        limits = self.settings.store
        retention = Retention(
            self.store, limits.keep_days, limits.keep_days_of, limits.keep_sweep,
            lambda removed: self.telemetry.record_sweep(None if removed is None else removed.threads.total()),
        )  # fmt: skip
        if retention.is_enabled:

            async def sweep() -> None:
                use_audit(self.audit)
                await retention.run()

            # A context of its own: a request may have started the server, but the sweep does not act for it.
            contextvars.Context().run(self.spawn, sweep())
        await asyncio.sleep(0)  # lets the loading begin, so that the next status request sees it
        if (mcp := self.mcp) is not None:
            self.spawn(mcp.connect_shared())

    async def erase(self, scope: RemovalScope, by: str, seconds: float) -> Erasure:
        """Permanently remove the threads and responses of a tenant, or of one of its keys.

        Active runs on a thread are cancelled first, and ended ones can no longer be replayed. Waits at most `seconds`
        and returns the erasure's state; it continues in the background, and after a restart.
        """
        erasure, is_new = await self.store.begin_erasure(scope, by)
        if is_new:
            self._begin_erasure(erasure)
        if (task := self._erasing.get(erasure.id)) is not None:
            await asyncio.wait((task,), timeout=seconds)
        return await self.store.erasure(erasure.id) or erasure

    def _begin_erasure(self, erasure: Erasure) -> None:
        # A context of its own: a request may have started the erasure, but it does not act for that request.
        self._erasing[erasure.id] = task = contextvars.Context().run(self.spawn, self._erase(erasure))
        task.add_done_callback(lambda _: self._erasing.pop(erasure.id, None))

    async def _erase(self, erasure: Erasure) -> None:
        """Carry out an erasure; retry while the store is unavailable."""

        async def stop(threads: Sequence[tuple[str, str]]) -> None:
            for tenant, thread in threads:
                for run in await self.runs.going_on(thread, tenant):
                    await run.cancel()
                    await run.wait()
                self.runs.forget_thread(thread, tenant)

        use_audit(self.audit)
        while True:
            try:
                removed = await self.store.erase(erasure, stop)
                break
            except StoreUnavailable as error:
                logger.warning("the erasure %s waits for the store: %s", erasure.id, error)
                await asyncio.sleep(ERASURE_PAUSE_SECONDS)
                with contextlib.suppress(StoreUnavailable):
                    erasure = await self.store.erasure(erasure.id) or erasure
        self.telemetry.removed.labels(reason="erasure").inc(removed.threads.total())
        note(
            "threads.removed", tenant=erasure.tenant, of_key=erasure.key,
            threads=erasure.threads + removed.threads.total(),
            responses=erasure.responses + removed.responses.total(), reason="erasure", by=erasure.by,
        )  # fmt: skip

    async def close(self) -> None:
        """Give active runs the drain time, end the rest, then close the agents, the model and the store."""
        self.closing = True
        await self.runs.close(self.settings.http.drain)
        for close in self.on_close:
            await close()
        await asyncio.gather(*(agent.close() for agent in set(self.agents.values())))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.webhooks is not None:
            await self.webhooks.close()
        self.downloads.close()
        await self.model.close()
        for auxiliary in self.auxiliary_models:
            await auxiliary.close()
        await self.store.close()
        await self.quotas.close()
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)

    def begin_shutdown(self) -> None:
        """Refuse new runs and drain the active ones. A second call ends those at once.

        Called by a signal handler on the event loop's thread.
        """
        drain = 0.0 if self.closing else self.settings.http.drain
        self.closing = True
        self.runs.begin_shutdown()
        self.spawn(self.runs.close(drain))

    def stop_web(self) -> None:
        if self.on_stop is not None:
            self.on_stop()

    @property
    def failed(self) -> bool:
        return self.model.status.state == "failed"

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task that is cancelled at the latest when the server closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
