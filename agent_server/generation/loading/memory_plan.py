"""Divide a device's memory, after running the largest step to measure it. All sizes are in bytes unless named tokens.

The memory that is free after the weights is used, in this order, for a step's activations and sampling, for captured
graphs, for fragmentation of the allocator, and for keys and values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from agent_server.engine_protocol.protocol import Picture, Sound
from agent_server.generation.attention.batches import Kernel, KVCache
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import out_of_memory
from agent_server.generation.multimodal.encoder import CACHE_BYTES, MediaEncoder
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Readers
from agent_server.generation.recorded.flat import Forward
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan
from events.options import SamplingParams

MIB = 2**20
GIB = 2**30
LOST_SHARE = 0.03
"""The share of free memory that is lost to fragmentation, and to libraries when they are first used."""
LOST_AT_LEAST = 256 * MIB
GRAPH = 6 * MIB
"""The nodes of a captured graph: some thousand kernels with their arguments."""
WORKSPACE = 64 * MIB
"""The workspace of cuBLAS for the capturing stream (32 MiB on Hopper, and the same for cuBLASLt)."""
LEAST_PAGES = 2


class InsufficientMemory(Exception):
    """Too little memory is left for keys and values. The message is a sentence about what uses the memory."""


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The memory that a model needs. per_token: keys and values of a token in all layers. page: tokens of a page.
    requested_tokens: the number of tokens beyond which more memory is useless."""

    per_token: int
    page: int
    requested_tokens: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of the memory. cache: the bytes of `tokens` keys and values, in whole pages."""

    step: int
    graphs: int
    overhead: int
    cache: int
    tokens: int

    def __str__(self) -> str:
        parts = (
            ("a step", self.step),
            ("graphs", self.graphs),
            ("spare", self.overhead),
            ("keys and values", self.cache),
        )
        return ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in parts)


def share_out(free: int, demand: MemoryDemand, *, step: int, graphs: int) -> Shares:
    """Divide the memory that the weights leave free. step, graphs: the bytes that those need. Raises
    InsufficientMemory."""
    overhead = max(LOST_AT_LEAST, int(free * LOST_SHARE))
    remaining = free - step - graphs - overhead
    tokens = min(demand.requested_tokens, remaining // demand.per_token) // demand.page * demand.page
    if tokens < LEAST_PAGES * demand.page:
        raise InsufficientMemory(
            f"{free / GIB:.2f} GiB are free beside the weights; a step takes {step / GIB:.2f}, graphs "
            f"{graphs / GIB:.2f} and {overhead / GIB:.2f} stay spare, which leaves too little for keys and values: "
            "a smaller AGENT_SERVER_MAX_BATCH or AGENT_SERVER_STEP_TOKENS makes a step smaller, --dtype or a quantised "
            "model the weights."
        )
    return Shares(step, graphs, overhead, tokens * demand.per_token, tokens)


CPU_SHARE = 0.3
"""The share of a machine's free memory for keys and values, since others use it too."""
CPU_CACHE = 128 * MIB
"""The least bytes for keys and values, which matter for a very small model."""


def cpu_tokens(free: int, weights: int, demand: MemoryDemand, context: int) -> int:
    """Return the tokens of keys and values on a machine with other work: in proportion to the bytes of the weights, and
    at least one sequence of the whole context, if the memory is free."""
    bound = max(context, (CPU_CACHE + 2 * weights) // demand.per_token)
    return min(demand.requested_tokens, bound, int(free * CPU_SHARE) // demand.per_token)


def graphs_reserve(count: int, rows: int, tokens: int, vocab_size: int, token_bytes: int) -> int:
    """Return the memory of `count` captured graphs in one pool: the activations of the largest step's `tokens`, the
    logits of its `rows` in the model's precision and in float32, and each graph's nodes."""
    if not count:
        return 0
    return WORKSPACE + count * GRAPH + tokens * token_bytes + rows * 6 * vocab_size


def state_tokens(per_token: int, per_sequence: int) -> int:
    """Return the number of tokens that need as much memory as a sequence's state of `per_sequence` bytes."""
    return -(-per_sequence // max(1, per_token))


logger = logging.getLogger("agent_server.generation")
MakeCache = Callable[[int], KVCache]
"""Makes a cache of a number of tokens."""
LEAST_BUDGET = 256
"""The smallest step, in tokens, that is tried on a device with too little memory."""
COSTLY = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1)
"""The sampling that needs most memory for a row: filters, counts for penalties, log probabilities."""


@torch.inference_mode()
def largest_step(
    model: object,
    make_cache: MakeCache,
    sampler: Sampler,
    budget: int,
    *,
    page: int,
    kernel: Kernel | None,
    flat: Forward | None,
) -> tuple[int, int]:
    """Return the bytes that a step of `budget` tokens needs besides weights, keys, values and the sampler's state, and
    the budget. The budget is halved until the step fits. Raises torch.OutOfMemoryError if none fits."""
    device = sampler.device
    while True:
        try:
            return _measure_step(model, make_cache, sampler, budget, page, kernel, flat), budget
        except Exception as error:
            if not out_of_memory(error) or budget <= LEAST_BUDGET:
                raise
            torch.cuda.empty_cache()
            logger.warning("Steps of %d tokens do not fit on %s; trying %d.", budget, device, budget // 2)
            budget //= 2


def _measure_step(
    model: Any,
    make_cache: MakeCache,
    sampler: Sampler,
    budget: int,
    page: int,
    kernel: Kernel | None,
    flat: Forward | None,
) -> int:
    """Run and sample a step with the largest number of logits: one prompt for every row. Return the bytes that it
    needed, and restore the sampler."""
    device = sampler.device
    lengths = _lengths(budget, len(sampler.occupants))
    rows = len(lengths)
    memory = PagedMemory(sum(-(-(length + 1) // page) for length in lengths) + 1, page)
    cache = make_cache((memory.total + 1) * page)
    runner = PackedRunner(model, memory, cache, device, kernel=kernel, flat=flat)
    before = _reset_peak(device)
    chunks: list[Chunk] = []
    for row, length in enumerate(lengths):
        sequence = Sequence(row, [1] * length, length, length + 1, row=row, state="running", shareable=False)
        memory.admit(sequence, alone=True)
        sequence.computed = length
        chunks.append(Chunk(sequence, 0, length, True))
    try:
        for row in range(rows):
            sampler.set(row, row, RowSampling(COSTLY, 0), [1], [])
        _, logits = runner.forward(StepPlan([], chunks), sampler.last)
        sampler.sample(logits, list(range(rows)), [0] * rows)
    finally:
        for row in range(rows):
            sampler.clear(row)
        sampler.last.zero_()
    return torch.cuda.max_memory_allocated(device) - before


PICTURE_SIDE = 4096
"""The side of the test picture, larger than what processors pass to an encoder: Qwen2-VL's takes 12.8 million pixels by
default."""
SOUND_SECONDS = 300
"""The length of the test sound for a model without a limit; a longer one uses other memory that is free."""


@torch.inference_mode()
def media_step(model: InnerTextModel, readers: Readers) -> int:
    """Return the bytes that a step with the largest picture or sound needs in its encoder, and for its stored
    embeddings. If the device is too small for it, the log says so, and a request with one fails."""
    largest = 0
    if readers.pictures is not None:
        pixels = bytes(PICTURE_SIDE * PICTURE_SIDE * 3)
        picture = Picture(width=PICTURE_SIDE, height=PICTURE_SIDE, pixels=pixels, digest=b"largest")
        largest = _tower_step(model, readers.pictures.prepare(picture), "pictures that the model reads")
    if readers.sounds is not None:
        samples = bytes(2 * readers.sounds.rate * (readers.sounds.seconds or SOUND_SECONDS))
        sound = Sound(samples=samples, rate=readers.sounds.rate, digest=b"longest")
        largest = max(largest, _tower_step(model, readers.sounds.prepare(sound), "sounds that the model hears"))
    return largest + CACHE_BYTES


def _tower_step(model: InnerTextModel, prepared: PreparedMedia, what: str) -> int:
    """Return the bytes that an encoder needs for a picture or sound. what: its name in the log, in the plural."""
    device = model.device
    before = _reset_peak(device)
    try:
        MediaEncoder(model).features(prepared)
    except Exception as error:
        if not out_of_memory(error):
            raise
        torch.cuda.empty_cache()
        logger.warning("The largest %s do not fit on %s.", what, device)
    return torch.cuda.max_memory_allocated(device) - before


def _lengths(budget: int, rows: int) -> list[int]:
    """Divide the budget into one prompt for every row, since each row then has logits, the maximum of a step."""
    rows = min(rows, budget)
    return [budget // rows + (number < budget % rows) for number in range(rows)]


def _reset_peak(device: torch.device) -> int:
    """Restart the measurement of the peak memory, and return the bytes that are allocated now."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
