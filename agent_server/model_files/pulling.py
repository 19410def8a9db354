"""Fetch models from the hub with downloads that can be interrupted and resumed, and list the models on this machine.

A model is named as on the hub, OWNER/NAME, and one GGUF file among several as OWNER/NAME:FILE. Its files are stored in
a folder of this server, next to huggingface_hub's cache, which restarts interrupted downloads from the beginning.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from agent_server.model_files.checkpoint_files import CACHED, HUB_FILES, MANIFEST, is_gguf, models_home, pulled_folder

PARTIAL = ".partial"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
OLDER_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
MORE = ("*processor_config.json", "vocab.json", "merges.txt", "added_tokens.json")
GGUF_ORDER = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
"""The kind of GGUF file that is chosen among several if none is named, since the core computes with eight bits."""
CHUNK = 1 << 20
SPARE = 2_000_000_000
"""Bytes of the disk that are left free."""
SECONDS = 20.0
"""Seconds without data from the hub after which a download fails."""


class PullError(Exception):
    """A model cannot be fetched. The message is one sentence that says what to do."""


class HubFile(msgspec.Struct, frozen=True):
    """A file on the hub. sha256: the checksum of a file in the hub's large storage. blob: Git's checksum of any other
    file."""

    path: str
    bytes: int
    sha256: str = ""
    blob: str = ""


class HubModel(msgspec.Struct, frozen=True):
    """A model on the hub, with the files of it that are served."""

    name: str
    commit: str
    licence: str
    files: list[HubFile]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def folder(self) -> Path:
        return pulled_folder(self.name)

    @property
    def source(self) -> str:
        """The argument of `serve`: the folder, or the one GGUF file."""
        ggufs = [file.path for file in self.files if is_gguf(file.path)]
        return str(self.folder / ggufs[0] if ggufs else self.folder)


class FoundModel(msgspec.Struct, frozen=True):
    """A search result. gated: its licence must be accepted on the hub first."""

    name: str
    downloads: int
    licence: str
    gated: bool


class LocalModel(msgspec.Struct, frozen=True):
    """A model on this machine. source: the argument of `serve`."""

    name: str
    source: str
    bytes: int


def look_up(name: str) -> HubModel:
    """Look up a model on the hub. Raises PullError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    repository, _, file = name.partition(":")
    owner, slash, rest = repository.partition("/")
    if not (owner and slash and rest) or "/" in rest or ".." in repository:
        raise PullError(f"{name!r} is no name on the hub. Write OWNER/NAME, or OWNER/NAME:FILE.gguf.")
    try:
        info = HfApi().model_info(repository, files_metadata=True, timeout=SECONDS)
    except GatedRepoError as error:
        raise PullError(_gated(repository)) from error
    except RepositoryNotFoundError as error:
        raise PullError(
            f"The hub has no model {repository}, or it is private: set HF_TOKEN to a token for it."
        ) from error
    except Exception as error:
        raise PullError(_unreachable(error)) from error
    every = [
        HubFile(
            each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else "", "" if each.lfs else each.blob_id or ""
        )
        for each in info.siblings or ()
        if "/" not in each.rfilename and not each.rfilename.startswith(".")
    ]
    tags = [tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")]
    return HubModel(name, info.sha or "main", tags[0] if tags else "", _chosen(name, every, file))


def _chosen(name: str, files: list[HubFile], file_name: str) -> list[HubFile]:
    """Select the files to serve. Raises PullError if the choice is ambiguous."""
    ggufs = {file.path: file for file in files if is_gguf(file.path)}
    if file_name:
        if file_name not in ggufs:
            raise PullError(
                f"{name.partition(':')[0]} has no file {file_name}; it has {', '.join(ggufs) or 'no GGUF file'}."
            )
        return [ggufs[file_name]]
    for kinds in (WEIGHTS, OLDER_WEIGHTS):
        weights = [file for file in files if _matches(file.path, kinds)]
        if any(not file.path.endswith(".json") for file in weights):
            return [*(file for file in files if _matches(file.path, (*HUB_FILES, *MORE))), *weights]
    for kind in GGUF_ORDER:
        for path, file in ggufs.items():
            if kind.lower() in path.lower() and "-of-" not in path:
                return [file]
    raise PullError(
        f"{name} has neither safetensors nor a GGUF file in one part."
        if not ggufs
        else f"{name} has several GGUF files; name one: {', '.join(f'{name}:{path}' for path in ggufs)}."
    )


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(Path(path).match(pattern) for pattern in patterns)


def search(words: str, limit: int = 12) -> list[FoundModel]:
    """Search for models that generate text, those with the most downloads first. Raises PullError."""
    from huggingface_hub import ModelInfo, constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    asked: dict[str, str | int] = {
        "search": words,
        "pipeline_tag": "text-generation",
        "sort": "downloads",
        "limit": limit,
    }
    try:  # once: `HfApi.list_models` tries six times, and a person without a network would wait half a minute
        address = f"{constants.ENDPOINT}/api/models"
        answer = get_session().get(address, params=asked, headers=build_hf_headers(), timeout=SECONDS)
        hf_raise_for_status(answer)
        results = [ModelInfo(**{"siblings": None, **each}) for each in answer.json()]  # type: ignore[no-untyped-call]
    except Exception as error:
        raise PullError(_unreachable(error)) from error
    return [
        FoundModel(
            each.id,
            each.downloads or 0,
            next((tag.partition(":")[2] for tag in each.tags or () if tag.startswith("license:")), ""),
            bool(each.gated),
        )
        for each in results
    ]


def fetch(model: HubModel, most: int, tell: Callable[[int], None]) -> str:
    """Fetch the missing files of a model, and return the argument of `serve`. Data of an interrupted download is kept.

    most: the maximum bytes of all fetched models together. tell: called often with the bytes that are here; an
    exception from it stops the download. Raises PullError."""
    missing = [file for file in model.files if _size(model.folder / file.path) != file.bytes]
    needed = sum(file.bytes - _size(_partial(model.folder, file)) for file in missing)
    home = models_home()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free - SPARE
    used = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    space = min(free, most - used if most else free)
    if needed > space:
        raise PullError(
            f"{needed / 1e9:.1f} GB are needed in {home} and {max(0, space) / 1e9:.1f} GB are left. Remove models with "
            "`agent-server models --remove NAME`, set HF_HOME to a larger disk, or raise AGENT_SERVER_MODELS_DISK."
        )
    model.folder.mkdir(parents=True, exist_ok=True)
    here = model.bytes - sum(file.bytes for file in missing)
    for file in missing:
        _fetch_file(model, file, here, tell)
        here += file.bytes
        tell(here)
    path = model.folder / MANIFEST
    path.write_bytes(msgspec.json.encode(model))
    return model.source


def _fetch_file(model: HubModel, file: HubFile, before: int, tell: Callable[[int], None]) -> None:
    """Fetch one file. before: the bytes of the other files that are here."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    partial = _partial(model.folder, file)
    repository = model.name.partition(":")[0]
    url = f"{constants.ENDPOINT}/{repository}/resolve/{model.commit}/{quote(file.path)}"
    done = min(_size(partial), file.bytes)
    headers = {**build_hf_headers(), "accept-encoding": "identity", **({"range": f"bytes={done}-"} if done else {})}
    try:
        if done < file.bytes or not partial.exists():
            with httpx2.stream("GET", url, headers=headers, timeout=SECONDS, follow_redirects=True) as answer:
                if answer.status_code in (401, 403):
                    raise PullError(_gated(repository))
                answer.raise_for_status()
                done = done if answer.status_code == 206 else 0
                with partial.open("ab" if done else "wb") as out:
                    for chunk in answer.iter_bytes(CHUNK):
                        out.write(chunk)
                        done += len(chunk)
                        tell(before + done)
    except (httpx2.HTTPError, OSError) as error:
        raise PullError(
            f"The download of {file.path} broke off ({_words(error)}); what came is kept. Try again."
        ) from error
    if done < file.bytes:
        raise PullError(f"The download of {file.path} ended early; what came is kept. Try again.")
    if not _is_whole(partial, file):
        partial.unlink()
        raise PullError(
            f"{file.path} is not what the hub says it is (its checksum differs); it was removed. Try again."
        )
    partial.replace(model.folder / file.path)


def _is_whole(path: Path, file: HubFile) -> bool:
    """Return whether a file has the checksum that the hub declares."""
    if not (file.sha256 or file.blob):
        return path.stat().st_size == file.bytes
    sum = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            sum.update(chunk)
    return sum.hexdigest() == (file.sha256 or file.blob)


def discard(name: str) -> None:
    """Remove a fetched model, also an incomplete one. Raises PullError if there is none."""
    folder = pulled_folder(name)
    if not folder.is_dir() or models_home() not in folder.resolve().parents:
        raise PullError(f"No model {name} was fetched.")
    shutil.rmtree(folder)


def local_models() -> Iterator[LocalModel]:
    """List the models that were fetched here, then those of huggingface_hub's cache that have weights."""
    from huggingface_hub import constants

    names: set[str] = set()
    for path in sorted(models_home().glob(f"*/*/{MANIFEST}")):
        models = msgspec.json.decode(path.read_bytes(), type=HubModel)
        names.add(models.name.partition(":")[0])
        yield LocalModel(models.name, models.source, models.bytes)
    for folder in sorted(Path(constants.HF_HUB_CACHE).expanduser().glob(f"{CACHED}*--*")):
        name = folder.name.removeprefix(CACHED).replace("--", "/", 1)
        weights = [file for kind in ("*.safetensors", "*.gguf") for file in folder.glob(f"snapshots/*/{kind}")]
        if name not in names and weights:
            source = str(weights[0]) if is_gguf(weights[0]) else str(weights[0].parent)
            yield LocalModel(
                name, source, sum(file.stat().st_size for file in weights if file.parent == weights[0].parent)
            )


def _partial(folder: Path, file: HubFile) -> Path:
    """Return the path of a partial download. It includes the file's checksum, so that a newer version is not appended
    to an older one."""
    return folder / f"{file.path}.{(file.sha256 or file.blob)[:12]}{PARTIAL}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _gated(repository: str) -> str:
    from huggingface_hub import constants

    return (
        f"{repository} asks for its licence to be accepted: do that at {constants.ENDPOINT}/{repository}, then set "
        "HF_TOKEN to a token of yours."
    )


def _unreachable(error: Exception) -> str:
    from huggingface_hub import constants

    return (
        f"The hub {constants.ENDPOINT} does not answer ({_words(error)}). Set HF_ENDPOINT to a mirror, or give a "
        "folder or a GGUF file."
    )


def _words(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
