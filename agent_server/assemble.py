"""From settings to a Server: which engine, which model, which agents, which store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_server.agent import Agent, Limits, LoadError, Sealer, load_agents, serve_agents
from agent_server.auth import Keys
from agent_server.engine.model import ChatModel
from agent_server.engine.output import OutputSettings
from agent_server.ids import new_id
from agent_server.runs import LogLimits, Run, RunLimits, RunManager
from agent_server.server import BUNDLED, BUNDLED_NAME, Server, StartupError
from agent_server.settings import Settings
from agent_server.store import Store
from agent_server.telemetry import Telemetry
from events.vocabulary import RunFinished

if TYPE_CHECKING:
    from agent_server.engine.prompt import PromptBuilder
    from agent_server.engine.protocol import Engine
    from agent_server.runs.sharing import Gateway

logger = logging.getLogger("agent_server")


def build_server(settings: Settings, *, agents: Sequence[Agent] = (), engine: Engine | None = None) -> Server:
    """Put the parts together; nothing heavy is loaded yet. Raises StartupError with one sentence."""
    telemetry = Telemetry()
    model = chat_model(settings, engine)
    try:
        named = [*agents, *load_agents(settings.agent)] or default_agents(settings)
        served = serve_agents(named, model, sealer=sealer(settings), limits=tool_limits(settings))
    except (LoadError, ValueError) as error:
        raise StartupError(str(error)) from error
    store = Store(settings.database_url)
    runs = RunManager(
        served,
        store=store,
        limits=run_limits(settings),
        new_id=new_id,
        observe=lambda run: count(telemetry, run),
        sharing=(gateway := sharing(settings)),
    )
    telemetry.watch_engine(model.engine.metrics)
    if gateway is not None:
        telemetry.watch_sharing(gateway.metrics)
    keys = Keys(key.get_secret_value() for key in settings.api_keys)
    return Server(settings=settings, model=model, agents=served, runs=runs, store=store, telemetry=telemetry, keys=keys)


def default_agents(settings: Settings) -> list[Agent]:
    """What is served when nobody named an agent: the demonstration's, or the model alone where the page is off."""
    from agent_server.demonstration import demonstration_agents

    return list(demonstration_agents()) if settings.demo else []


def chat_model(settings: Settings, engine: Engine | None = None) -> ChatModel:
    """The model that the settings name, with its engine. A bare folder name that exists is a folder."""
    source = settings.model or str(BUNDLED)
    name = settings.served_name or (Path(source).name if settings.model else BUNDLED_NAME)
    if Path(source).is_dir() is False and settings.model and "/" not in settings.model and not settings.engine:
        raise StartupError(
            f"There is no folder {source}. Give a folder with a model, or a hub name like Qwen/Qwen3-0.6B."
        )
    chosen = engine or choose_engine(settings, source, name)
    return ChatModel(name, chosen, lambda: load_prompts(settings, source), output_settings(settings))


def output_settings(settings: Settings) -> OutputSettings:
    return OutputSettings(
        delivery=settings.delivery,
        boundaries=settings.boundaries,
        undeclared=settings.undeclared_tools,
        failed=settings.failed_calls,
        constrain_tools=settings.constrain_tools,
    )


def choose_engine(settings: Settings, source: str, name: str) -> Engine:
    if settings.engine == ("scripted",):
        return scripted_engine(source, name)
    if settings.engine:
        raise StartupError("Upstream engines are not part of this version.")
    from agent_server.engine.embedded import embedded_engine

    return embedded_engine(source, name, settings)


def scripted_engine(source: str, name: str) -> Engine:
    """The demonstration scripts in the model's own tokens: the whole server without the model's weights."""
    from agent_server.engine.detokenizer import TokenizerVocabulary
    from agent_server.engine.model_files import load_model_files
    from agent_server.engine.scripted import ScriptedEngine

    try:
        tokenizer = load_model_files(source).tokenizer
    except FileNotFoundError as error:
        raise StartupError(str(error)) from error
    return ScriptedEngine(vocabulary=TokenizerVocabulary(tokenizer), model=name)


def load_prompts(settings: Settings, source: str) -> PromptBuilder:
    from agent_server.engine.prompt import PromptBuilder, PromptSettings

    template = settings.chat_template
    wanted = PromptSettings(
        chat_template=template.read_text("utf-8") if template else None,
        format=settings.format or None,
        reasoning_parser=settings.reasoning_parser or None,
        tool_call_parser=settings.tool_call_parser or None,
        context_length=settings.max_context or None,
        render_seconds=settings.render_time_limit,
    )
    return PromptBuilder.load(source, wanted)


def sealer(settings: Settings) -> Sealer:
    """The keys that hide reasoning; none configured means one that lives as long as the process."""
    try:
        return Sealer.from_settings([key.get_secret_value() for key in settings.encryption_keys])
    except ValueError as error:
        raise StartupError(f"Every encryption key must be 32 bytes in base64: {error}.") from error


def tool_limits(settings: Settings) -> Limits:
    return Limits(seconds=settings.tool_time_limit, characters=settings.tool_result_limit)


def sharing(settings: Settings) -> Gateway | None:
    """What makes this server one of several gateways; None for one alone."""
    if not settings.redis_url:
        return None
    try:
        from agent_server.runs.sharing import Gateway, SharingLimits
    except ImportError as error:
        raise StartupError("--redis needs the extra: pip install 'agent-server[redis]'.") from error
    limits = SharingLimits(
        lease=settings.gateway_lease,
        run=settings.run_time_limit,
        replay=settings.replay_seconds,
        bytes=settings.log_bytes,
    )
    logs = LogLimits(bytes=settings.log_bytes)
    try:
        return Gateway(settings.redis_url, prefix=settings.redis_prefix, limits=limits, logs=logs)
    except ValueError as error:
        raise StartupError(f"This is not the URL of a Redis: {error}") from error


def run_limits(settings: Settings) -> RunLimits:
    return RunLimits(
        runs=settings.max_runs,
        runs_per_tenant=settings.max_runs_per_tenant,
        queued_per_thread=settings.max_queued_per_thread,
        grace=settings.grace,
        run_seconds=settings.run_time_limit,
        replay_seconds=settings.replay_seconds,
        log=LogLimits(bytes=settings.log_bytes),
    )


def count(telemetry: Telemetry, run: Run) -> None:
    """Add a run that ended to the counters."""
    terminal = run.terminal
    metadata = (terminal.metadata if terminal is not None else None) or {}
    reason = metadata.get("finishReason", "error") if isinstance(terminal, RunFinished) else "error"
    telemetry.runs.labels(reason=reason).inc()
    if metadata.get("constrained"):
        telemetry.constrained.inc()
    timings = metadata.get("timings", {})
    if "firstToken" in timings:
        telemetry.first_token.observe(timings["firstToken"])
    if "total" in timings:
        telemetry.run_seconds.observe(timings["total"])
    for usage in getattr(terminal, "usage", None) or ():
        telemetry.prompt_tokens.inc(usage.input_tokens or 0)
        telemetry.output_tokens.inc(usage.output_tokens or 0)
