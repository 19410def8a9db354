"""Builds a Server from the settings: the models, the agents, the store and the metrics."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sqlalchemy.exc import SQLAlchemyError

from agent_server.agents import Agent, LoadError, Sealer, ServedAgent
from agent_server.agents.guard_model import load_guards
from agent_server.agents.guardrails import Guards, screen
from agent_server.agents.guests import Named, load_named, serve_named
from agent_server.agents.loading import load_mcp_file
from agent_server.http.auth import Authority, Quotas, configured_authority, storage_url
from agent_server.http.engine_choice import choose_models, other_model
from agent_server.http.served_models import ServedModels
from agent_server.http.server import ServableAgent, Server, StartupError
from agent_server.ids import new_id
from agent_server.media.intake import Intake
from agent_server.models.downloads import Downloads
from agent_server.models.model import ChatModel
from agent_server.observability.audit import AuditLog
from agent_server.observability.telemetry import ServerTelemetry
from agent_server.runs import Run, RunManager
from agent_server.runs.driver import Screen
from agent_server.runs.store import Store
from agent_server.runs.store.sizes import StorageLimit
from agent_server.runs.webhooks import Webhooks
from agent_server.settings import Settings
from events.metadata import finished_metadata
from events.vocabulary import RunError, RunFinished

if TYPE_CHECKING:
    from agent_server.engine_protocol.protocol import Engine
    from agent_server.engines.embeddings import Embeddings
    from agent_server.engines.reranking import Reranker
    from agent_server.engines.transcription import Transcriber
    from agent_server.models.pool import AnyModel
    from agent_server.runs.sharing import Gateway

logger = logging.getLogger("agent_server")


def build_server(settings: Settings, *, agents: Sequence[object] = (), engine: Engine | None = None) -> Server:
    """Build the server; no model is loaded yet.

    agents: of this package or of other frameworks. Raises StartupError with a message for the operator.
    """
    telemetry = ServerTelemetry()
    authority, quotas = make_authority(settings), make_quotas(settings)
    named = named_agents(settings, agents)
    models = choose_models(settings, engine, for_guests=engine is None and serves_guests_alone(settings, named))
    model, shared_sealer = models.main, sealer(settings)
    store = make_store(settings)
    served, guards = served_agents(settings, named, models, shared_sealer, store)
    webhooks = make_webhooks(settings, store)
    runs = RunManager(
        served,
        store=store,
        limits=settings.runs.model_copy(update={"tenants": authority.tenants}),
        new_id=new_id,
        observe=lambda run: observe(telemetry, webhooks, run),
        sharing=(gateway := sharing(settings)),
        quotas=quotas,
        screen=screen_of(served, guards, model.intake),
        may_store=StorageLimit(store, most).check if (most := settings.tenants.storage_bytes) else None,
    )
    watch(telemetry, models, runs, gateway)
    return Server(
        settings=settings,
        model=model,
        models=models.models,
        pool=models.pool,
        sealer=shared_sealer,
        make_agent=partial(plain_agent, settings, guards),
        make_model=other_model if engine is None and may_change(settings, model) else None,
        downloads=Downloads(settings.downloads.disk),
        agents=served,
        runs=runs,
        store=store,
        telemetry=telemetry,
        authority=authority,
        quotas=quotas,
        audit=audit_log(settings),
        webhooks=webhooks,
        **auxiliary_models(settings),
    )


def named_agents(settings: Settings, agents: Sequence[object]) -> Sequence[Named]:
    """The agents of the settings and the caller, or the demonstration's if there are none. Raises StartupError."""
    try:
        named: Sequence[Named] = load_named(
            settings.served.agent, agents, settings.served.agent_headers, settings.served.agent_forward
        )
    except LoadError as error:
        raise StartupError(str(error)) from error
    return named or default_agents(settings)


def served_agents(
    settings: Settings, named: Sequence[Named], models: ServedModels, shared_sealer: Sealer, store: Store
) -> tuple[dict[str, ServableAgent], Guards | None]:
    """All agents by name, including those without tools for each model, and the server's guards.

    The dict changes when LoRA adapters are loaded and removed. Raises StartupError.
    """
    try:
        guards = load_guards(settings.served.guard, models.models, models.main)
        named = [*with_mcp_files(named, settings.served.mcp), *models.agents({each.name for each in named})]
        served = serve_named(
            named,
            models.main,
            sealer=shared_sealer,
            limits=settings.tools,
            models=models.models,
            guards=guards,
            compaction=None if settings.served.compaction == "off" else settings.served.compaction,
            store=store,
            public_url=settings.listening.browser_url,
        )
    except (LoadError, ValueError) as error:
        raise StartupError(str(error)) from error
    mcp = next((agent.mcp for agent in served.values() if agent.mcp is not None), None)
    if mcp is not None and mcp.consents is not None and store.durable and not settings.access.encryption_keys:
        names = ", ".join(server.name for server in mcp.consents.servers.values())
        raise StartupError(
            f"Users sign in to the MCP server {names}, and their tokens are stored only encrypted. Set "
            "AGENT_SERVER_ENCRYPTION_KEYS to 32 random bytes in base64 (openssl rand -base64 32)."
        )
    return dict(served), guards


def watch(telemetry: ServerTelemetry, models: ServedModels, runs: RunManager, gateway: Gateway | None) -> None:
    """Register the engine, the runs and the other gateways with the metrics."""
    model = models.main
    telemetry.watch_engine((lambda: model.engine.metrics()) if isinstance(model, ChatModel) else models.metrics)
    telemetry.watch_runs(lambda: runs.active)
    if isinstance(model, ChatModel):
        watch_replicas(telemetry, model.engine)
    if gateway is not None:
        telemetry.watch_sharing(gateway.metrics)


def may_change(settings: Settings, model: AnyModel) -> bool:
    """Whether the demonstration page may switch the model."""
    choice, compute = settings.downloads.change, settings.compute
    local = isinstance(model, ChatModel) and settings.served.local
    if not local or compute.lora or compute.adapter or compute.draft:
        return False
    if choice != "auto":
        return choice == "on"
    keyed = settings.access.api_keys or settings.access.keys_file or settings.issuer.issuer
    return not keyed and all(is_loopback(address.host) for address in settings.listening.addresses if not address.path)


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serves_guests_alone(settings: Settings, named: Sequence[Named]) -> bool:
    """Whether all agents are of other frameworks and no model is configured."""
    served = settings.served
    model = served.model or served.models or served.models_file or served.engine
    return bool(named) and not model and not any(isinstance(each, Agent) for each in named)


def audit_log(settings: Settings) -> AuditLog | None:
    path = settings.watching.audit_log
    try:
        return None if path is None else AuditLog(path)
    except OSError as error:
        raise StartupError(f"The audit log {path} cannot be opened: {error.strerror}.") from error


class AuxiliaryModels(TypedDict):
    embeddings: Embeddings | None
    reranker: Reranker | None
    transcriber: Transcriber | None


def auxiliary_models(settings: Settings) -> AuxiliaryModels:
    """The models that do not chat; none is loaded yet. Raises StartupError."""
    from agent_server.engines.embeddings import choose_embeddings
    from agent_server.engines.reranking import choose_reranker
    from agent_server.engines.transcription import choose_transcriber

    try:
        return {
            "embeddings": choose_embeddings(settings),
            "reranker": choose_reranker(settings),
            "transcriber": choose_transcriber(settings),
        }
    except ValueError as error:
        raise StartupError(str(error)) from error


def screen_of(served: Mapping[str, ServableAgent], guards: Guards | None, intake: Intake) -> Screen | None:
    """The screen that checks a run's input with its agent's guards; None if no agent has any."""
    if guards is None and all(agent.guards is None for agent in served.values()):
        return None

    async def read(run: Run) -> None:
        if (agent_guards := served[run.agent].guards) is not None:
            await screen(agent_guards, run.input, run.options, intake.texts)

    return read


def plain_agent(settings: Settings, guards: Guards | None, name: str, model: AnyModel) -> ServedAgent:
    """An agent without tools for a model, under the model's name. Raises ValueError for an invalid name."""
    agent = Agent(name=name, model=name, description=f"The model {name} alone, without tools.")
    return ServedAgent(
        agent, model, sealer=sealer(settings), limits=settings.tools, models={name: model}, guards=guards
    )


def make_quotas(settings: Settings) -> Quotas:
    return Quotas(
        tenant_requests=settings.tenants.requests_per_minute,
        tenant_tokens=settings.tenants.tokens_per_minute,
        tenant_context=settings.tenants.context,
        storage=storage_url(settings.sharing.redis_url),
        prefix=settings.sharing.redis_prefix,
    )


def make_authority(settings: Settings) -> Authority:
    try:
        return configured_authority(settings)
    except ValueError as error:
        raise StartupError(str(error)) from error


def make_store(settings: Settings) -> Store:
    try:
        return Store(settings.store.database_url)
    except (SQLAlchemyError, ImportError) as error:
        raise StartupError(
            f"The store's URL cannot be used: {error}. "
            "Give sqlite:///PATH, postgresql://USER@HOST/NAME or memory with --store."
        ) from error


def watch_replicas(telemetry: ServerTelemetry, engine: Engine) -> None:
    from agent_server.engines.replicas import ReplicaCollector, ReplicaSet

    if isinstance(engine, ReplicaSet):
        telemetry.registry.register(ReplicaCollector(engine))


def default_agents(settings: Settings) -> list[Agent]:
    """The agents that are served if none is configured: those of the demonstration, or none if the page is off.

    Without agents the model is served alone.
    """
    from agent_server.agents.demonstration import demonstration_agents

    if not settings.watching.demo:
        return []
    return list(demonstration_agents(summarises=bool(settings.served.model or settings.served.models_file)))


def with_mcp_files(agents: Sequence[Named], files: Sequence[str]) -> Sequence[Named]:
    """Add the MCP servers of the files to the agents of this package. Raises LoadError."""
    servers = [server for file in files for server in load_mcp_file(Path(file), os.environ)]
    if not servers:
        return agents
    served: Sequence[Named] = agents or [Agent(name="default")]
    return [
        replace(agent, mcp_servers=(*agent.mcp_servers, *servers)) if isinstance(agent, Agent) else agent
        for agent in served
    ]


def sealer(settings: Settings) -> Sealer:
    """The keys that encrypt hidden reasoning. Without configured keys, one is generated for the process's lifetime."""
    try:
        return Sealer.from_settings([key.get_secret_value() for key in settings.access.encryption_keys])
    except ValueError as error:
        raise StartupError(f"Every encryption key must be 32 bytes in base64: {error}.") from error


def sharing(settings: Settings) -> Gateway | None:
    """The connection to the other gateways; None if this server is the only one."""
    limits = settings.sharing
    if not limits.redis_url:
        return None
    try:
        from agent_server.runs.sharing import Gateway
    except ImportError as error:
        raise StartupError("--redis needs the extra: pip install 'agent-server[redis]'.") from error
    if not settings.access.encryption_keys:
        logger.warning(
            "Set the same AGENT_SERVER_ENCRYPTION_KEYS on all gateways: without it, none can decrypt reasoning "
            "that another has encrypted."
        )
    try:
        return Gateway(limits, settings.runs.log)
    except ValueError as error:
        raise StartupError(
            f"The URL of Redis cannot be used: {error}. Give redis://, rediss:// or unix:// with --redis."
        ) from error


def make_webhooks(settings: Settings, store: Store) -> Webhooks:
    try:
        return Webhooks(store, settings.webhooks)
    except ValueError as error:
        raise StartupError(f"{error}.") from error


def observe(telemetry: ServerTelemetry, webhooks: Webhooks, run: Run) -> None:
    """Called when a run has ended."""
    count_run(telemetry, run)
    webhooks.wake()


def count_run(telemetry: ServerTelemetry, run: Run) -> None:
    """Count a run that has ended."""
    terminal = run.terminal
    metadata = finished_metadata(terminal)
    telemetry.runs.labels(reason=metadata.finish_reason or "error").inc()
    if metadata.constrained:
        telemetry.constrained.inc()
    if metadata.timings.first_token is not None:
        telemetry.first_token.observe(metadata.timings.first_token)
    if metadata.timings.total is not None:
        telemetry.run_seconds.observe(metadata.timings.total)
    usages = terminal.usage if isinstance(terminal, RunFinished | RunError) else None
    for usage in usages or ():
        telemetry.prompt_tokens.inc(usage.input_tokens or 0)
        telemetry.output_tokens.inc(usage.output_tokens or 0)
