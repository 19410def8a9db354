"""A model's tokenizer, chat templates and special tokens, from a folder or a name."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agent_server.model_files.served_tokenizer import ADDED, for_serving, without_training_limits
from agent_server.model_files.usable_files import ModelFiles, UnusableFile, read_json, read_text, readable

LOCAL_PACKAGES = ("torch", "transformers", "numpy")
"""The packages of the extra `local`, which only the generation core needs."""
OWN_CODE = "{} comes with code of its own, which is run with --trust-remote-code alone: read it first."
PIECES = "tokenizer.model"
"""The file of SentencePiece, which older models have instead of a tokenizer.json."""
UNNAMED = ("model", "models", "checkpoint", "snapshot", "weights", "0_transformer")
"""Names of folders that do not identify the model in them."""
CARD_FIELD = re.compile(r"---\n(?:(?!---\n).*\n)*?model_name: *[\"']?(?P<name>[\w./-]+)[\"']? *\n")
HEADING = re.compile(r"^# +(?P<name>[\w][\w.-]*(?:/[\w.-]+)?) *$", re.MULTILINE)
MANIFEST = "agent-server.json"
"""The manifest in the folder of a model that `agent-server pull` fetched."""
CACHED = "models--"
"""The prefix of a model's folder in huggingface_hub's cache."""
GENERATING = ("CausalLM", "LMHead", "Generation")
ENCODING = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
"""The suffixes of transformers' classes for models that generate text, and for those that do not."""
NOTHING = (
    "no tokenizer was found for {!r}: there is no tokenizer.json and nothing that transformers can make one of; copy "
    "the tokenizer's files beside the weights"
)
HUB_FILES = (
    "tokenizer.json",
    PIECES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "generation_config.json",
    "chat_template.json",
    "processor_config.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
"""Patterns of the files of a model other than its weights; a few megabytes."""
HUB_TIMEOUT = 3.0
"""Seconds in which the hub must answer, with the look-up of its name."""
HUB_PROBE_SECONDS = 30
"""How long the result of the check of the hub is cached."""


class HubUnreachableError(FileNotFoundError):
    """No connection to the hub, and the model is not in the local cache."""


def is_gguf(model: str | Path) -> bool:
    """Return whether the name is that of a GGUF file, llama.cpp's format for a whole model."""
    return str(model).lower().endswith(".gguf")


def is_hub_name(model: str) -> bool:
    """Return whether the name has the form OWNER/NAME and is neither a folder nor a GGUF file."""
    owner, slash, name = model.partition("/")
    formed = bool(owner and slash and name) and "/" not in name and not owner.startswith((".", "~"))
    return formed and not is_gguf(model) and not Path(model).is_dir()


def require_hub(model: str) -> None:
    """Raise HubUnreachableError if the model must be fetched and no connection to the hub opens. Needs none of the
    packages that compute, so it can be asked before they are imported."""
    from huggingface_hub import constants

    if not is_hub_name(model) or (Path(constants.HF_HUB_CACHE) / f"{CACHED}{model.replace('/', '--')}").is_dir():
        return
    if _is_offline():
        raise HubUnreachableError(_unreachable(model))


def missing_package() -> str | None:
    """Return a package that computing a model in this process needs and that is not installed."""
    return next((each for each in LOCAL_PACKAGES if importlib.util.find_spec(each) is None), None)


def _is_offline() -> bool:
    from huggingface_hub import constants

    period = int(time.monotonic() // HUB_PROBE_SECONDS)
    return constants.HF_HUB_OFFLINE or not _hub_answers(constants.ENDPOINT, period)


def _unreachable(model: str) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return (
            f"HF_HUB_OFFLINE is set, and {model!r} is not in the local cache. "
            "Unset it, or name a folder or a GGUF file."
        )
    return (
        f"The hub {constants.ENDPOINT} does not answer, and {model!r} is not in the local cache. "
        "Set HF_ENDPOINT to a mirror, or name a folder or a GGUF file."
    )


def models_home() -> Path:
    """Return the folder of the models that `agent-server pull` fetches, next to huggingface_hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME).expanduser() / "agent-server"


def pulled_folder(name: str) -> Path:
    """Return the folder for a model on the hub, OWNER/NAME or OWNER/NAME:FILE."""
    return models_home() / name.partition(":")[0]


def pulled(name: str) -> str | None:
    """Return the folder or GGUF file of a model that `agent-server pull` fetched; None for any other."""
    repository, _, file = name.partition(":")
    if repository.count("/") != 1 or ".." in repository or repository.startswith(("/", "~")):
        return None
    folder = pulled_folder(name)
    if not (folder / MANIFEST).is_file():
        return None
    ggufs = [each["path"] for each in read_json(folder / MANIFEST)["files"] if is_gguf(each["path"])]
    if file and file not in ggufs:
        return None
    return str(folder / ggufs[0] if ggufs else folder)


def local_source(model: str) -> str:
    """Return the folder with a model's files. For a folder of huggingface_hub's cache, `models--OWNER--NAME`, that is
    the snapshot of the branch main, or the latest one; for a hub name that `agent-server pull` fetched, its folder or
    file. Everything else is returned unchanged."""
    path = Path(model).expanduser()
    if not path.exists() and (fetched := pulled(model)) is not None:
        return fetched
    if not path.name.startswith(CACHED) or not (path / "snapshots").is_dir():
        return model
    main = path / "refs" / "main"
    named = path / "snapshots" / main.read_text("utf-8").strip() if main.is_file() else None
    if named is not None and named.is_dir():
        return str(named)
    snapshots = [each for each in (path / "snapshots").iterdir() if each.is_dir()]
    return str(max(snapshots, key=lambda each: each.stat().st_mtime)) if snapshots else model


def source_name(model: str) -> str:
    """Return a model's default name: the last part of its folder's, file's or hub name. If a folder's name does not
    identify the model, such as `model`, it is the name in the model's card, or else that of the parent folder."""
    if is_gguf(model):
        return Path(model).stem
    path = Path(model)
    if not path.is_dir():
        return path.name
    above = path.absolute().parents
    if above[0].name == "snapshots" and above[1].name.startswith(CACHED):
        return above[1].name.rpartition("--")[2]
    name = path.resolve().name if path.name in ("", "..") else path.name
    return name if name.lower() not in UNNAMED else _card_name(path / "README.md") or path.resolve().parent.name


def encoder_of(model: str) -> str | None:
    """Return the class of a local model that encodes text and does not generate it; None for all others, and if the
    configuration cannot be read."""
    path = Path(model) / "config.json"
    try:
        config = read_json(path) if path.is_file() else {}
    except UnusableFile:
        return None
    names = [str(name) for name in config.get("architectures") or ()]
    own = config.get("auto_map") or {}
    if "AutoModelForCausalLM" in own or any(word in name for name in names for word in GENERATING):
        return None
    encodes = (Path(model) / "modules.json").is_file() or (names and all(name.endswith(ENCODING) for name in names))
    return (names or ["sentence-transformers"])[0] if encodes else None


def _card_name(card: Path) -> str:
    """Return the model's name from its card: its `model_name`, or its first heading if that has the form of a name."""
    if not card.is_file():
        return ""
    text = card.read_text("utf-8", "replace")
    match = CARD_FIELD.match(text) or HEADING.search(text)
    return match["name"].rpartition("/")[2] if match else ""


def load_model_files(model: str | Path, *, trusted: bool = False) -> ModelFiles:
    """Read a local folder or a GGUF file, or fetch a model's files by its name on the hub. A model without
    tokenizer.json needs transformers, which converts other kinds of tokenizer. trusted: code that comes with a
    tokenizer may be run.

    Raises FileNotFoundError with one sentence if there is no tokenizer, UnusableFile if a file cannot be read.
    """
    if is_gguf(model):
        from agent_server.model_files.gguf_files import gguf_model_files

        return gguf_model_files(Path(model).expanduser())
    try:
        folder = model_folder(str(model))
        if (folder / "tokenizer.json").is_file() or (folder / PIECES).is_file():
            files = _from_folder(folder)
            if files is not None:
                return files
        reason = "it has no tokenizer.json"
    except HubUnreachableError:
        raise
    except FileNotFoundError as error:
        reason = str(error)
    if importlib.util.find_spec("transformers") is None:
        hint = "pip install 'agent-server[local]' brings transformers, which converts other kinds of tokenizer"
        raise FileNotFoundError(f"no tokenizer was found for {str(model)!r}: {reason} ({hint})")
    return _from_transformers(str(model), trusted)


def model_folder(model: str, more: Sequence[str] = ()) -> Path:
    """Return the local folder, or the folder in huggingface_hub's cache with all files but the weights, which are
    fetched if they are new. more: patterns of further files to fetch.

    Raises FileNotFoundError with one sentence if the hub has no such model or does not answer.
    """
    if Path(model).is_dir():
        return Path(model)
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    offline = _is_offline()
    try:
        return Path(snapshot_download(model, allow_patterns=[*HUB_FILES, *more], local_files_only=offline))
    except (OSError, ValueError, httpx2.HTTPError) as error:  # ValueError: not the form of a hub's name
        if offline and not isinstance(error, HFValidationError):
            raise HubUnreachableError(_unreachable(model)) from error
        raise FileNotFoundError(str(error).partition("\n")[0] or type(error).__name__) from error


@lru_cache(maxsize=1)
def _hub_answers(endpoint: str, period: int) -> bool:
    """Return whether a connection to the hub opens within seconds; huggingface_hub itself retries for most of a minute.
    The result is cached for all files of a model. period: changes whenever it must be checked again."""
    import httpx2

    answers: list[httpx2.Response] = []

    def probe() -> None:
        with contextlib.suppress(httpx2.TransportError):
            answers.append(httpx2.head(endpoint, timeout=HUB_TIMEOUT))

    # In a thread, because a client's timeouts do not bound the look-up of a name.
    asking = threading.Thread(target=probe, name="hub", daemon=True)
    asking.start()
    asking.join(HUB_TIMEOUT)
    return bool(answers)


def _from_folder(folder: Path) -> ModelFiles | None:
    """Return the model's files from a folder; None if it has no tokenizer that can be read without transformers."""
    named, settings = _json(folder / "special_tokens_map.json"), _json(folder / "tokenizer_config.json")
    # Older files, which do not list the added tokens, name special tokens in a file of their own, which then counts.
    settings = {**named, **settings} if ADDED in settings else {**settings, **named}
    # bos_token and the like, each a text or a mapping with the key "content".
    tokens_by_name: dict[str, str] = {}
    for key, value in settings.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if key.endswith("_token") and isinstance(content, str):
            tokens_by_name[key] = content
    special_tokens = tokens_by_name
    read = _tokenizer(folder, settings, special_tokens)
    if read is None:
        return None
    tokenizer, special = read
    if ADDED not in settings:
        settings[ADDED] = _older_added_tokens(folder, tokenizer, special)
    tokenizer = for_serving(tokenizer, settings, special, folder / "tokenizer_config.json")
    config = _json(folder / "config.json")
    return ModelFiles(
        tokenizer=tokenizer,
        templates=_templates(folder, settings.get("chat_template")),
        special_tokens=special,
        stop_token_ids=_stops(tokenizer, special, _json(folder / "generation_config.json"), config),
        context_length=_context_length(config),
        response_template=response_template_of(settings),
    )


def _older_added_tokens(folder: Path, tokenizer: Tokenizer, special: Mapping[str, str]) -> dict[str, object]:
    """Return the tokens of added_tokens.json (text → id) that the tokenizer does not add itself, in the form of
    `added_tokens_decoder`."""
    own, named = tokenizer.get_added_tokens_decoder(), set(special.values())
    listed = _json(folder / "added_tokens.json")
    return {
        str(number): {"content": text, "special": text in named, "normalized": text not in named}
        for text, number in listed.items()
        if number not in own
    }


def _tokenizer(
    folder: Path, settings: Mapping[str, Any], special: dict[str, str]
) -> tuple[Tokenizer, dict[str, str]] | None:
    """Return the tokenizer and its special tokens; None for a list of tiktoken, whose file has the name of
    SentencePiece's. special: those that the settings name."""
    path = folder / "tokenizer.json"
    if path.is_file():
        readable(path)
        try:
            return Tokenizer.from_file(str(path)), special
        except Exception as error:  # tokenizers raises plain ones
            raise UnusableFile(f"{path} is not a tokenizer ({error}); download it again.") from error
    from agent_server.model_files.sentencepiece_files import sentencepiece_tokenizer

    path = folder / PIECES
    readable(path)
    try:
        return sentencepiece_tokenizer(path, settings, special)
    except ImportError:
        hint = "pip install 'agent-server[local]' brings what reads it"
        raise FileNotFoundError(f"{path} is a tokenizer of SentencePiece's: {hint}") from None


def folder_response_template(folder: Path) -> Mapping[str, object]:
    """Return a checkpoint's description of its own output; {} if it has none."""
    return response_template_of(_json(folder / "tokenizer_config.json"))


def response_template_of(settings: Mapping[str, object]) -> Mapping[str, object]:
    value = settings.get("response_template")
    return value if isinstance(value, Mapping) else {}


def folder_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates of a model's folder by name; empty if it has none."""
    return _templates(folder, _json(folder / "tokenizer_config.json").get("chat_template"))


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object of an optional file; {} without it."""
    return read_json(path) if path.is_file() else {}


def _templates(folder: Path, configured: object) -> dict[str, str]:
    """Return the chat templates of the first of these that has any, as transformers does: the files
    chat_template.jinja and additional_chat_templates, the processor's files, the tokenizer's configuration."""
    templates: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = read_text(folder / "chat_template.jinja")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path)
    for processor in ("processor_config.json", "chat_template.json"):
        templates = templates or named_templates(_json(folder / processor).get("chat_template"))
    return templates or named_templates(configured)


def named_templates(value: object) -> dict[str, str]:
    """Return the templates of a configuration, by name: it has one text, a mapping by name, or a list of {name,
    template}."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        return {str(key): text for key, text in value.items() if isinstance(text, str)}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
        return {
            str(entry.get("name")): entry["template"] for entry in entries if isinstance(entry.get("template"), str)
        }
    return {}


def _stops(tokenizer: Tokenizer, special: Mapping[str, str], *configs: Mapping[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        ids += [value] if isinstance(value, int) else [v for v in value or () if isinstance(v, int)]
    end = tokenizer.token_to_id(special.get("eos_token", ""))
    return tuple(dict.fromkeys([*ids, *([end] if end is not None else [])]))


def _context_length(config: Mapping[str, Any]) -> int | None:
    for place in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(place.get(key), int):
                return int(place[key])
    return None


def _from_transformers(model: str, trusted: bool) -> ModelFiles:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    pieces = Path(model) / PIECES
    if (Path(model) / "vocab.json").is_file() and not (Path(model) / "merges.txt").is_file():
        raise UnusableFile(f"{model} has a vocab.json without its merges.txt; download it again.")
    try:
        # False and not None, for which transformers would ask on the terminal.
        loaded = AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UnusableFile(OWN_CODE.format(f"The tokenizer of {model}")) from error
        if pieces.is_file():
            raise UnusableFile(f"{pieces} is not a tokenizer of SentencePiece's; download it again.") from error
        raise FileNotFoundError(NOTHING.format(model)) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise FileNotFoundError(f"the tokenizer of {model!r} has no fast form (tokenizer.json)")
    marks = {*(token.content for token in backend.get_added_tokens_decoder().values()), *loaded.all_special_tokens}
    if set(backend.get_vocab()) <= marks:  # transformers makes some kinds of nothing, which then drop every text
        raise FileNotFoundError(NOTHING.format(model))
    configs: list[dict[str, object]] = []
    for read in (GenerationConfig.from_pretrained, partial(AutoConfig.from_pretrained, trust_remote_code=trusted)):
        try:
            configs.append(read(model).to_dict())
        except (OSError, ValueError):
            configs.append({})
    special = {key: str(value) for key, value in loaded.special_tokens_map.items() if key.endswith("_token")}
    return ModelFiles(
        tokenizer=without_training_limits(backend),
        templates=named_templates(loaded.chat_template),
        special_tokens=special,
        stop_token_ids=_stops(backend, special, *configs),
        context_length=_context_length(configs[1]),
        response_template=response_template_of({"response_template": getattr(loaded, "response_template", None)}),
    )
