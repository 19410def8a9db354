"""A short list of models to try first, and which of them this machine can run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

import msgspec

OVERHEAD = 1.2
"""Memory for a model as a multiple of its weights' bytes, including its cache and activations."""
OWN_BYTES = 700_000_000
"""Memory of the server itself in bytes."""
EFFICIENCY = 0.5
"""The share of the memory bandwidth that the core reaches with one generation on a CPU."""
QUICK = 4.0
"""Tokens per second at which a person can read along."""
SAMPLE = 32 << 20
"""The size of the copy that measures the memory bandwidth, larger than a CPU's caches."""


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the list. bytes: the size of its files. read: the bytes of the weights that one token uses, if that is
    not all of them, as in a mixture of experts."""

    name: str
    title: str
    about: str
    bytes: int
    licence: str
    read: int = 0


CATALOGUE = (
    CatalogueModel(
        name="HuggingFaceTB/SmolLM2-135M-Instruct", title="SmolLM2 135M", bytes=271_000_000, licence="Apache-2.0",
        about="The smallest that chats; English",
    ),
    CatalogueModel(
        name="Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", title="Qwen3 0.6B", bytes=639_000_000, licence="Apache-2.0",
        about="Thinks and calls tools; for any laptop",
    ),
    CatalogueModel(
        name="google/gemma-3-1b-it", title="Gemma 3 1B", bytes=2_000_000_000, licence="Gemma",
        about="Many languages; its licence is accepted on the hub",
    ),
    CatalogueModel(
        name="Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf", title="Qwen3 1.7B", bytes=1_834_000_000, licence="Apache-2.0",
        about="Thinks and calls tools; more reliable",
    ),
    CatalogueModel(
        name="Qwen/Qwen3-4B-Instruct-2507", title="Qwen3 4B Instruct", bytes=8_060_000_000, licence="Apache-2.0",
        about="Good at tools and long texts",
    ),
    CatalogueModel(
        name="openai/gpt-oss-20b", title="gpt-oss 20B", bytes=13_800_000_000, read=2_600_000_000, licence="Apache-2.0",
        about="Thinks and calls tools well",
    ),
    CatalogueModel(
        name="Qwen/Qwen3-8B", title="Qwen3 8B", bytes=16_400_000_000, licence="Apache-2.0",
        about="An all-rounder for one GPU",
    ),
    CatalogueModel(
        name="Qwen/Qwen3-30B-A3B-Instruct-2507", title="Qwen3 30B A3B", bytes=61_100_000_000, read=6_600_000_000,
        licence="Apache-2.0", about="Large and fast, for a GPU with 80 GB",
    ),
)  # fmt: skip


class Machine(msgspec.Struct, frozen=True):
    """The machine's device. memory: bytes of the GPU's memory, or of the machine's without a GPU. bandwidth: bytes per
    second that one CPU core copies; 0 with a GPU, which is not measured."""

    device: str
    memory: int
    bandwidth: float


class ModelOffer(msgspec.Struct, frozen=True):
    """A model of the list on this machine. speed: estimated tokens per second; None if unknown."""

    name: str
    title: str
    about: str
    bytes: int
    licence: str
    fits: bool
    speed: float | None


def offers(machine: Machine) -> list[ModelOffer]:
    """Return the list for this machine: models that are quick here, the largest first; then others that fit; then the
    rest, the smallest first."""
    matching_offers = [
        ModelOffer(
            each.name,
            each.title,
            each.about,
            each.bytes,
            each.licence,
            fits=each.bytes * OVERHEAD + OWN_BYTES <= machine.memory,
            speed=machine.bandwidth * EFFICIENCY / (each.read or each.bytes) or None,
        )
        for each in CATALOGUE
    ]

    def order(offer: ModelOffer) -> tuple[bool, bool, int]:
        quick = offer.fits and (offer.speed is None or offer.speed >= QUICK)
        return not offer.fits, not quick, -offer.bytes if quick else offer.bytes

    return sorted(matching_offers, key=order)


@cache
def machine(device: str = "auto") -> Machine:
    """Examine this machine. Blocking. device: as in the setting."""
    program = shutil.which("nvidia-smi") if device.startswith(("auto", "cuda")) else None
    if program is not None:
        # The first NVIDIA GPU, from its driver, since a gateway has no torch.
        query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
            lines = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
            name, _, megabytes = lines[0].rpartition(",")
            return Machine(name, int(megabytes) << 20, 0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()  # of this process's control group
        memory = min(memory, int(limit)) if limit.isdecimal() else memory
    return Machine("CPU", memory, _copy_speed())


def _copy_speed() -> float:
    """Return the bytes per second that a copy of memory reads and writes, the best of a few tries."""
    source, copy = bytearray(SAMPLE), bytearray(SAMPLE)
    best = float("inf")
    for _ in range(8):
        began = time.perf_counter()
        copy[:] = source
        best = min(best, time.perf_counter() - began)
    return 2 * SAMPLE / best
