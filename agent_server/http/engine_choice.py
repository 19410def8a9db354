"""Selects the served models, and the engine of each, by the settings."""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import msgspec

from agent_server.http.auth.principal import asking_tenant
from agent_server.http.served_models import ModelFactory, ServedModels, serve_models
from agent_server.http.server import BUNDLED, BUNDLED_NAME, StartupError
from agent_server.media.intake import Intake
from agent_server.model_files import (
    UnusableFile,
    encoder_of,
    is_gguf,
    is_hub_name,
    local_source,
    missing_package,
    model_folder,
    read_json,
    source_name,
)
from agent_server.models.model import ChatModel
from agent_server.settings import Settings

if TYPE_CHECKING:
    from agent_server.engine_protocol.protocol import Engine
    from agent_server.engines.upstream import UpstreamModel
    from agent_server.engines.upstream.transport import UpstreamAddress
    from agent_server.models.prompting.prompt import PromptBuilder


def choose_models(settings: Settings, engine: Engine | None, *, for_guests: bool = False) -> ServedModels:
    """The models in the settings. engine: replaces the engine that the settings select; there is then one model."""
    served = settings.served
    shared = bool(served.models or served.models_file)
    factory = ModelFactory(
        model=lambda own: chat_model(own, engine, shared=shared),
        prompts=lambda own: load_prompts(own, own.served.model or str(BUNDLED)),
        check=named_model,
    )
    return serve_models(settings, factory, for_guests=for_guests)


def chat_model(settings: Settings, engine: Engine | None = None, *, shared: bool = False) -> ChatModel:
    """The model in the settings, with its engine. shared: whether other models share its device. Raises
    StartupError."""
    source, name = named_model(settings)
    template = settings.served.chat_template
    if template is not None and not template.is_file():
        raise StartupError(f"There is no chat template at {template}.")
    engine = engine or choose_engine(settings, source, name, shared=shared)
    return ChatModel(
        name,
        engine,
        lambda: load_prompts(settings, source),
        settings.output,
        Intake(settings.media, tenant=asking_tenant),
    )


def other_model(settings: Settings, source: str | None) -> tuple[Settings, ChatModel]:
    """A model that replaces the one in the settings, without that one's chat template and output format.

    source: None makes the settings' model again. Raises StartupError.
    """
    if source is None:
        return settings, chat_model(settings)
    served = settings.served.model_copy(update={"model": source, "served_name": "", "chat_template": None})
    prompts = settings.prompts.model_copy(update={"format": "", "reasoning_parser": "", "tool_call_parser": ""})
    own = settings.model_copy(update={"served": served, "prompts": prompts})
    return own, chat_model(own)


def named_model(settings: Settings) -> tuple[str, str]:
    """(source: folder, GGUF file or hub name; the name that clients use).

    Raises StartupError if there is no such source.
    """
    served = settings.served
    source = local_source(served.model) if served.model else str(BUNDLED)
    name = served.served_name or (source_name(source) if served.model else BUNDLED_NAME)
    if is_gguf(source):
        if not Path(source).expanduser().is_file():
            raise StartupError(f"There is no file {source}.")
    elif served.model and served.local and not Path(source).is_dir() and not is_hub_name(source):
        raise StartupError(
            f"There is no folder {source}. Give a folder with a model, or a hub name like Qwen/Qwen3-0.6B."
        )
    return source, name


logger = logging.getLogger("agent_server")
MEDIA = frozenset({"vision_config", "audio_config", "thinker_config"})
"""The parts of a config.json that read pictures and sounds."""


def auto_engine(settings: Settings, source: str, *, shared: bool = False) -> tuple[Literal["vllm", "embedded"], str]:
    """Choose the engine of a model that is computed here, with the reason in a sentence.

    vLLM in this process is for CUDA, the models that it knows and the settings that it takes; the embedded engine
    serves the rest. shared: whether other models share its device.
    """
    served, device = settings.served, settings.compute.device
    auxiliary = (served.embedding_model, served.reranker, served.transcriber)
    if not device.startswith(("auto", "cuda")):
        return "embedded", f"The device is {device}, and vLLM is taken on CUDA alone."
    if find_spec("vllm") is None:
        return "embedded", "vLLM is not installed here."
    if source == str(BUNDLED):
        return "embedded", "The demonstration model is too small to gain by vLLM."
    if is_gguf(source):
        return "embedded", "It is a GGUF file, which the embedded engine reads."
    if shared or any(model and "://" not in model for model in auxiliary):
        return "embedded", "Several models share this machine, and vLLM takes the memory of a GPU for one."
    from agent_server.engines.vllm_inprocess import engine_arguments

    try:
        engine_arguments(settings.compute, served.vllm)
    except ValueError as error:
        return "embedded", str(error)
    try:
        from vllm import ModelRegistry
        from vllm.platforms import current_platform

        if not current_platform.is_cuda():
            return "embedded", "vLLM finds no CUDA device here."
        known = frozenset(ModelRegistry.get_supported_archs())
    except Exception as error:  # an installation that does not fit the driver or torch may raise anything
        return "embedded", f"vLLM cannot be used: {type(error).__name__}: {error}"
    try:
        config = read_json(model_folder(source) / "config.json")
    except (OSError, UnusableFile):
        return "embedded", f"{source} has no config.json that can be read."
    architectures = [str(each) for each in config.get("architectures") or ()]
    if not known.intersection(architectures):
        return "embedded", f"vLLM does not know the architecture {', '.join(architectures) or 'of the model'}."
    if MEDIA & config.keys():
        return "embedded", "It reads pictures or sounds, which vLLM in this process does not take."
    return "vllm", f"vLLM is installed and knows {architectures[0]}, and the device is CUDA."


def choose_engine(settings: Settings, source: str, name: str, *, shared: bool = False) -> Engine:
    engine = settings.served.engine
    if engine in ((), ("auto",)):
        kind, reason = auto_engine(settings, source, shared=shared)
        if kind == "vllm" or missing_package() is None:
            logger.info("%s is computed by the engine %s. %s", name, kind, reason)
        engine = (kind,)
    if engine == ("scripted",):
        return scripted_engine(source, name)
    if engine == ("vllm",):
        from agent_server.engines.vllm_inprocess import VLLMEngine, engine_arguments

        try:
            arguments = engine_arguments(settings.compute, settings.served.vllm)
        except ValueError as error:
            raise StartupError(str(error)) from error
        load = partial(upstream_model, settings, source, name)
        return VLLMEngine(load, arguments, settings.upstream.in_flight, settings.compute.lora)
    if engine != ("embedded",):
        return upstream_engine(settings, source, name)
    if (package := missing_package()) is not None:
        raise StartupError(
            f"Computing {name} in this process needs {package}: pip install 'agent-server[local]'. "
            "Without it, --engine URL serves a model that another server computes."
        )
    return local_engine(settings, source, name)


def local_engine(settings: Settings, source: str, name: str) -> Engine:
    """The engine on this machine's devices: on several, a replica on each behind one engine."""
    from agent_server.engines.embedded import embedded_engine
    from agent_server.engines.replicas import ReplicaSet, distinct

    if (kind := encoder_of(source)) is not None:
        ranks = kind.endswith("ForSequenceClassification")
        raise StartupError(
            f"{source} {'scores' if ranks else 'embeds'} texts and cannot chat ({kind}). Serve it with a chat model: "
            f"agent-server serve MODEL {'--reranker' if ranks else '--embedding-model'} {source}"
        )
    compute = settings.compute
    devices = [device.strip() for device in compute.device.split(",")]
    if not all(devices):
        raise StartupError(f"--device {compute.device} names an empty device. Name two as cuda:0,cuda:1.")
    per_device = [compute.model_copy(update={"device": device}) for device in devices]
    engines = [embedded_engine(source, name, device_settings, settings.process) for device_settings in per_device]
    if len(engines) == 1:
        return engines[0]
    return ReplicaSet(engines, settings.replica_settings, names=distinct(devices))


def upstream_engine(settings: Settings, source: str, name: str) -> Engine:
    """The engines at the URLs, behind one engine. Nothing is sent to them before they are started."""
    from agent_server.engines.replicas import ReplicaSet, distinct
    from agent_server.engines.upstream import parse_address

    try:
        addresses = [parse_address(url, settings.upstream.key.get_secret_value()) for url in settings.served.engine]
    except ValueError as error:
        raise StartupError(str(error)) from error
    engines = [engine_at(address, settings, source, name) for address in addresses]
    names = distinct([urlsplit(address.url).netloc for address in addresses])
    return ReplicaSet(engines, settings.replica_settings, names=names)


def engine_at(address: UpstreamAddress, settings: Settings, source: str, name: str) -> Engine:
    """The engine at an address: a worker or an upstream. Without a dialect it is detected when the engine starts."""
    from agent_server.engines.upstream import UpstreamEngine
    from agent_server.engines.upstream.transport import WORKER
    from agent_server.engines.worker.client import DiscoveredEngine, WorkerEngine

    limits = settings.upstream
    upstream = partial(UpstreamEngine, address, partial(upstream_model, settings, source, name), limits)
    if address.dialect == WORKER:
        return WorkerEngine(address, limits)
    return DiscoveredEngine(address, upstream, limits) if address.dialect is None else upstream()


def upstream_model(settings: Settings, source: str, name: str) -> UpstreamModel:
    """The tokenizer and the sampling defaults of a model that an upstream serves."""
    from agent_server.engines.upstream import load_model

    model = load_model(source, name)
    return msgspec.structs.replace(model, context_length=settings.compute.max_context or model.context_length)


def scripted_engine(source: str, name: str) -> Engine:
    """The scripted engine with the model's tokenizer: it plays the demonstration scripts without weights."""
    from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
    from agent_server.engines.scripted import ScriptedEngine
    from agent_server.model_files import load_model_files

    try:
        tokenizer = load_model_files(source).tokenizer
    except FileNotFoundError as error:
        raise StartupError(str(error)) from error
    return ScriptedEngine(vocabulary=TokenizerVocabulary(tokenizer), model=name)


def load_prompts(settings: Settings, source: str) -> PromptBuilder:
    from agent_server.models.prompting.prompt import PromptBuilder

    template = settings.served.chat_template
    own = {
        "chat_template": template.read_text("utf-8") if template else None,
        "context_length": settings.compute.max_context or None,
    }
    return PromptBuilder.load(
        source, settings.prompts.model_copy(update=own), trusted=settings.compute.trust_remote_code
    )
