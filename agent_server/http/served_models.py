"""The models in the settings, and how they are served: one that stays loaded, or a pool that loads them on request."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pydantic import BaseModel, ValidationError

from agent_server.agents import Agent, LoadError
from agent_server.agents.agent import NAME
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.auth.principal import asking_tenant
from agent_server.http.server import BUNDLED, BUNDLED_NAME, StartupError
from agent_server.media.intake import Intake
from agent_server.model_files import local_source, source_name
from agent_server.models.pool import AdaptedModel, AnyModel, ModelPool, PooledModel
from agent_server.settings import Settings
from agent_server.settings.section import nested

if TYPE_CHECKING:
    from agent_server.models.model import ChatModel
    from agent_server.models.prompting.prompt import PromptBuilder

MODEL_SETTINGS = (
    "model", "device", "dtype", "quantize", "kv_cache_dtype", "trust_remote_code", "adapter", "lora", "draft", "engine",
    "engine_key", "chat_template", "format", "reasoning_parser", "tool_call_parser", "max_batch", "max_queued",
    "step_tokens", "chunk_tokens", "kv_cache_bytes", "max_context", "cuda_graphs", "vllm",
    "unmarked_calls", "undeclared_tools", "failed_calls", "boundaries", "constrain_tools", "sampling_defaults",
)  # fmt: skip
"""The settings that a models file may set for each model."""
CACHE_SHARE = 4
"""At least 1/CACHE_SHARE of a memory budget is for the models' caches, even if the weights leave less."""
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


class ServedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The served models. main: the first one. models: by name. pool: None if there is one model, which stays loaded."""

    main: ChatModel | PooledModel
    models: dict[str, AnyModel]
    pool: ModelPool | None = None

    def metrics(self) -> Mapping[str, float]:
        return {} if self.pool is None else self.pool.metrics()

    def agents(self, reserved_names: Collection[str] = ()) -> list[Agent]:
        """An agent without tools for each of several models, and for each LoRA adapter, under its name.

        reserved_names: of the other agents. Raises LoadError if a model has one of them.
        """
        alone = self.pool is None or len(self.pool.models) < 2
        names = [name for name, model in self.models.items() if not alone or isinstance(model, AdaptedModel)]
        if shared_names := sorted(set(reserved_names) & set(names)):
            raise LoadError(f"A model and an agent are both called {shared_names[0]!r}. Name the model as NAME=FOLDER.")
        return [Agent(name=name, model=name, description=f"The model {name} alone, without tools.") for name in names]


class ModelFactory(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a model from its own settings.

    check: raises StartupError for a missing source, before anything is loaded.
    """

    model: Callable[[Settings], ChatModel]
    prompts: Callable[[Settings], PromptBuilder]
    check: Callable[[Settings], object]


def serve_models(settings: Settings, factory: ModelFactory, *, for_guests: bool = False) -> ServedModels:
    """Build the served models; none is loaded yet.

    for_guests: only agents of other frameworks are served and no model is configured; the bundled model is then loaded
    if an agent uses it. Raises StartupError.
    """
    model_settings = wanted_models(settings)
    if for_guests:
        # One model that is loaded on its first use. Until then it is not even imported, so that a gateway does not need
        # the packages for local models. Using it without them is an error that names the missing package.
        name, guest_settings = next(iter(model_settings.items()))

        def make() -> ChatModel:
            try:
                return factory.model(guest_settings)
            except StartupError as error:
                message = f"This server has no model that the agent could use. {error}"
                raise EngineError("unavailable", message) from error

        prompts = functools.cache(lambda: factory.prompts(guest_settings))
        pooled = PooledModel(
            name, make, prompts, guest_settings.output, Intake(guest_settings.media, tenant=asking_tenant)
        )
        pool = ModelPool(guest_settings.pool)
        pool.add(pooled)
        pool.any_loaded = True
        return ServedModels(main=pooled, models={name: pooled}, pool=pool)
    if len(model_settings) == 1 and not settings.pool.idle:
        own = next(iter(model_settings.values()))
        model = factory.model(own)
        return ServedModels(main=model, models=_with_adapters({model.name: model}, {model.name: own}))
    for each in model_settings.values():
        factory.check(each)
    pool = ModelPool(settings.pool)
    for name, each in with_caches(model_settings, settings.pool.budget).items():
        pool.add(_pooled(name, each, factory))
    models: dict[str, ChatModel | PooledModel] = dict(pool.models)
    return ServedModels(main=next(iter(pool.models.values())), models=_with_adapters(models, model_settings), pool=pool)


def _with_adapters(
    models: Mapping[str, ChatModel | PooledModel], model_settings: Mapping[str, Settings]
) -> dict[str, AnyModel]:
    """The models and each LoRA adapter by name. Raises StartupError."""
    all_models: dict[str, AnyModel] = dict(models)
    for root, settings in zip(models.values(), model_settings.values(), strict=True):
        if settings.compute.lora and not settings.served.local:
            raise StartupError(f"--lora needs a local model, but {root.name} runs on another server (--engine).")
        if settings.compute.draft and not settings.served.local:
            raise StartupError(f"--draft needs a local model, but {root.name} runs on another server (--engine).")
        for name in map(adapter_name, settings.compute.lora):
            if name in all_models:
                raise StartupError(
                    f"Two models are called {name!r}. Give the adapter another name with --lora NAME=FOLDER."
                )
            check_name(name)
            all_models[name] = AdaptedModel(name, root)
    return all_models


def adapter_name(source: str) -> str:
    return source.partition("=")[0]


def _pooled(name: str, settings: Settings, factory: ModelFactory) -> PooledModel:
    prompts = functools.cache(lambda: factory.prompts(settings))  # kept when the weights are unloaded
    sample = factory.model(settings)  # reports errors at startup

    def make() -> ChatModel:
        lora = tuple(f"{name}={folder}" for name, folder in pooled.adapters.items())
        model = factory.model(_model_settings(settings, {"lora": lora, "served_name": name}))
        model.load_prompts = prompts
        return model

    size = _weights(settings) + settings.compute.kv_cache_bytes
    pooled = PooledModel(name, make, prompts, sample.output, sample.intake, size)
    pooled.adapters = {adapter_name(source): source.partition("=")[2] for source in settings.compute.lora}
    return pooled


# which


def wanted_models(settings: Settings) -> dict[str, Settings]:
    """The settings of each model by name: first those of the command line, then those of the models file.

    Raises StartupError.
    """
    by_name: dict[str, Settings] = {}
    served = settings.served
    sources = [served.model, *served.models] if served.model or not served.models_file else []
    several = len(sources) > 1 or served.models_file is not None
    for source in sources:
        name, path = named_source(source)
        if not several:
            name = served.served_name or name
        lora, draft = ((), "") if by_name else (settings.compute.lora, settings.compute.draft)
        served_name = name if several else served.served_name
        _add(
            by_name,
            name,
            _model_settings(settings, {"model": path, "served_name": served_name, "lora": lora, "draft": draft}),
        )
    for name, row in read_models_file(served.models_file).items():
        _add(by_name, name, _model_settings(settings, {"lora": (), "draft": "", **row, "served_name": name}))
    if several and served.served_name:
        raise StartupError("--served-name names one model. With several, name each as NAME=FOLDER.")
    for name in by_name if several else ():
        check_name(name)
    return by_name


def _add(by_name: dict[str, Settings], name: str, settings: Settings) -> None:
    if name in by_name:
        raise StartupError(f"Two models are called {name!r}. Rename one with NAME={settings.served.model}.")
    by_name[name] = settings


def check_name(name: str) -> None:
    if name == "default" or not NAME.fullmatch(name):
        raise StartupError(
            f"A model cannot be called {name!r}, since names are parts of paths. Use letters, digits, '.', '_' and '-' "
            "in NAME=FOLDER."
        )


def named_source(source: str) -> tuple[str, str]:
    """Split `name=source`, or a source alone, into the name that clients use and the folder, file or hub name."""
    name, equals, place = source.partition("=")
    if equals and place and NAME.fullmatch(name) and not Path(source).exists():
        return name, local_source(place)
    source = local_source(source)
    return (source_name(source) if source else BUNDLED_NAME), source


def _model_settings(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """The settings of one model, validated like all others. Raises StartupError."""
    changed: dict[str, BaseModel] = {}
    for name, values in nested(Settings, {"models": (), "models_file": None, **changes}).items():
        section = getattr(settings, name)
        try:
            changed[name] = type(section)(**{**dict(section), **dict(values)})  # type: ignore[call-overload]
        except ValidationError as error:
            fault = error.errors(include_input=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise StartupError(f"The model {changes['served_name']}: {where}: {fault['msg']}.") from error
    return settings.model_copy(update=changed)


def read_models_file(path: Path | None) -> dict[str, dict[str, object]]:
    """The tables of a models file: each model's own settings by name. Raises StartupError."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartupError(f"The models file {path} cannot be read: {error}.") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise StartupError(f"{path}: {name} is not a table. Write a model as [{name}], followed by its settings.")
        if unknown := sorted(set(table) - set(MODEL_SETTINGS)):
            raise StartupError(
                f"{path}: [{name}] has the unknown setting {unknown[0]}. Use {', '.join(MODEL_SETTINGS)}."
            )
    if not tables:
        raise StartupError(f'The models file {path} names no model; write [NAME] and model = "FOLDER".')
    return tables


# memory


def with_caches(model_settings: Mapping[str, Settings], budget: int) -> dict[str, Settings]:
    """The models' settings, with a share of the memory budget for each cache that has no configured size.

    budget: bytes; 0 for no budget. The caches get equal parts of what the weights leave, or of 1/CACHE_SHARE of the
    budget if that is more.
    """
    if not budget:
        return dict(model_settings)
    weights = sum(map(_weights, model_settings.values()))
    share = max(budget - weights, budget // CACHE_SHARE) // len(model_settings)
    return {
        name: each
        if each.compute.kv_cache_bytes
        else _model_settings(each, {"kv_cache_bytes": share, "served_name": name})
        for name, each in model_settings.items()
    }


def _weights(settings: Settings) -> int:
    """Bytes of the weights of a model and its draft model."""
    draft = settings.compute.draft
    return file_bytes(settings.served.model) + (file_bytes(draft) if draft else 0)


def file_bytes(source: str) -> int:
    """Bytes of the weights in a folder or a file; 0 for a hub name that is not downloaded yet."""
    path = Path(source or BUNDLED)
    if path.is_file():
        return path.stat().st_size
    kinds = [sorted(path.glob(pattern)) for pattern in WEIGHTS] if path.is_dir() else []
    return sum(file.stat().st_size for file in next(filter(None, kinds), ()))
