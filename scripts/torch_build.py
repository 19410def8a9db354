"""Install the build of torch that fits this machine: `scripts/torch_build.py`, run by the environment's own Python.

PyPI's wheels for Linux carry CUDA and some 2.7 GB of NVIDIA's libraries; the builds without it, and those for older
drivers, are on PyTorch's own index. With an NVIDIA GPU the build for its driver is taken. Without one it is the CPU's,
from a folder that pip knows of (find-links) or from PyTorch's index if that answers, else PyPI's after all.

TORCH=cpu|cuda chooses by hand; TORCH_INDEX=URL takes that index. The version is the one that constraints.txt pins,
or the file that is named: `scripts/torch_build.py FILE`.
What is installed already stays, unless one of the two says otherwise.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_PYTHON = (3, 11)
PYTORCH = "https://download.pytorch.org/whl"
"""PyTorch's public indexes, one for each build: https://pytorch.org/get-started/locally."""
CUDA = (13, 0)
"""What PyPI's wheels of torch 2.13 are built with; a driver must know it."""
OLDER_CUDA = "cu126"
"""The build for older drivers: one for CUDA 12.6 runs on every driver of CUDA 12."""
SECONDS = 5.0
"""For an index to answer."""
SIZES = {"cpu": "about 190 MB", "cuda": "about 2.7 GB with NVIDIA's libraries", "macos": "about 110 MB"}


class ChoiceError(Exception):
    """One sentence: why no build can be chosen."""


@dataclass(frozen=True)
class Machine:
    """system, machine: as `platform` names them. cuda: the newest version that the NVIDIA driver knows, None where
    there is no NVIDIA GPU. tag: Python's, such as cp311. folders: where pip looks for wheels besides its index."""

    system: str
    machine: str
    cuda: tuple[int, int] | None
    tag: str
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Build:
    """requirement: for pip. index: the one to take it from, None for pip's own. says: one line for the person."""

    requirement: str
    index: str | None
    says: str


Listed = Callable[[str, str], bool]
"""Whether an index (its URL) answers and lists a wheel whose name fits the pattern."""


def choose(version: str, machine: Machine, wish: str, index: str, listed: Listed) -> Build:
    """The build of torch `version`. wish: TORCH, index: TORCH_INDEX, both may be empty. Raises ChoiceError."""
    if wish not in ("", "cpu", "cuda"):
        raise ChoiceError(f"TORCH={wish} is neither cpu nor cuda.")
    if machine.system == "Darwin":
        return mac(version, wish, index)
    if wish == "cuda" or (not wish and machine.cuda):
        return for_cuda(version, machine, index, listed)
    return for_cpu(version, machine, index, listed)


def mac(version: str, wish: str, index: str) -> Build:
    if wish == "cuda":
        raise ChoiceError("TORCH=cuda: there is no build of torch with CUDA for macOS.")
    return Build(f"torch=={version}", index or None, f"torch {version} for macOS, {SIZES['macos']}.")


def for_cuda(version: str, machine: Machine, index: str, listed: Listed) -> Build:
    requirement = f"torch=={version},!={version}+cpu"
    why = "TORCH=cuda" if machine.cuda is None else f"an NVIDIA GPU, CUDA {machine.cuda[0]}.{machine.cuda[1]}"
    if index:
        return Build(requirement, index, f"torch {version} from {index} ({why}), {SIZES['cuda']}.")
    if machine.cuda is None or machine.cuda >= CUDA:
        return Build(requirement, None, f"torch {version} with CUDA {CUDA[0]} ({why}), {SIZES['cuda']}.")
    older = f"{version}+{OLDER_CUDA}"
    if listed(f"{PYTORCH}/{OLDER_CUDA}", wheel(older, machine)):
        says = f"torch {older} for the older driver ({why}), {SIZES['cuda']}."
        return Build(f"torch=={older}", f"{PYTORCH}/{OLDER_CUDA}", says)
    says = f"torch {version} with CUDA {CUDA[0]} ({why}: too old for it, update the driver), {SIZES['cuda']}."
    return Build(requirement, None, says)


def for_cpu(version: str, machine: Machine, index: str, listed: Listed) -> Build:
    if index:
        return Build(f"torch=={version}", index, f"torch {version} from {index}, {SIZES['cpu']} for the CPU's build.")
    local = f"{version}+cpu"
    if found := in_folders(machine.folders, wheel(local, machine)):
        size = f"{found.stat().st_size / 1e6:.0f} MB"
        return Build(f"torch=={local}", None, f"torch {local} for the CPU from {found.parent}, {size}.")
    if listed(f"{PYTORCH}/cpu", wheel(local, machine)):
        return Build(f"torch=={local}", f"{PYTORCH}/cpu", f"torch {local} for the CPU, {SIZES['cpu']}.")
    says = f"torch {version} from PyPI, {SIZES['cuda']}: no index of builds for the CPU is at hand (TORCH_INDEX=URL)."
    return Build(f"torch=={version}", None, says)


def wheel(version: str, machine: Machine) -> str:
    """A pattern for the wheel's file name."""
    return rf"torch-{re.escape(version)}-{machine.tag}-{machine.tag}-[\w.]*linux\w*_{machine.machine}\.whl"


def in_folders(folders: Iterable[Path], pattern: str) -> Path | None:
    files = (file for folder in folders if folder.is_dir() for file in sorted(folder.glob("torch-*.whl")))
    return next((file for file in files if re.fullmatch(pattern, file.name)), None)


def kept(installed: str | None, version: str, wish: str, index: str) -> bool:
    """Whether the torch that is installed stays: it is the pinned version, and no other build is asked for by hand."""
    if installed is None or installed.partition("+")[0] != version or index:
        return False
    return not wish or wish == ("cpu" if installed.endswith("+cpu") or sys.platform == "darwin" else "cuda")


# what is found out about the machine


def this_machine(environment: Mapping[str, str]) -> Machine:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return Machine(platform.system(), platform.machine(), driver_cuda(), tag, find_links(environment))


def driver_cuda() -> tuple[int, int] | None:
    """The CUDA version that nvidia-smi names; None where there is no driver or no GPU."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    done = subprocess.run([command], capture_output=True, text=True, check=False)
    return cuda_version(done.stdout) if done.returncode == 0 else None


def cuda_version(said: str) -> tuple[int, int] | None:
    """Of nvidia-smi's table; its newest drivers write "CUDA UMD Version"."""
    found = re.search(r"CUDA (?:UMD )?Version:\s*(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def find_links(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders on this machine that pip is told to look into, by its environment or its configuration."""
    places = environment.get("PIP_FIND_LINKS") or configured("global.find-links") or configured("install.find-links")
    return tuple(Path(urllib.parse.unquote(place.removeprefix("file://"))).expanduser() for place in places.split())


def configured(name: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "get", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def lists(index: str, pattern: str) -> bool:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=SECONDS) as answer:
            page = answer.read().decode("utf-8", "replace")
    except OSError:
        return False
    return re.search(pattern, urllib.parse.unquote(page)) is not None


def pinned(constraints: str) -> str:
    found = re.search(r"^torch==([^\s;+]+)", constraints, re.MULTILINE)
    if found is None:
        raise ChoiceError("constraints.txt pins no torch: run `make lock`.")
    return found[1]


def installed() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def main(environment: Mapping[str, str], constraints: Path) -> int:
    if sys.version_info < OLDEST_PYTHON:
        raise ChoiceError(f"Python {platform.python_version()} is too old, 3.11 is needed: make PYTHON=python3.11 ...")
    version = pinned(constraints.read_text("utf-8"))
    wish, index = environment.get("TORCH", ""), environment.get("TORCH_INDEX", "")
    if kept(installed(), version, wish, index):
        return 0
    build = choose(version, this_machine(environment), wish, index, lists)
    print(build.says, flush=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    command += [*(["--index-url", build.index] if build.index else []), build.requirement]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    try:
        default = Path(__file__).parents[1] / "constraints.txt"
        sys.exit(main(os.environ, Path(sys.argv[1]) if sys.argv[1:] else default))
    except ChoiceError as error:
        sys.exit(f"scripts/torch_build.py: {error}")
