"""What a step takes, found out by running the largest one that the scheduler may plan."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import Picture, Sound
from agent_server.generation.attention.kv_cache import KVCache
from agent_server.generation.attention.paged_batch import Kernel
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import out_of_memory
from agent_server.generation.multimodal.encoder import KEPT_BYTES, MediaEncoder
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Readers
from agent_server.generation.recorded.flat import Forward
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.step_plan import Chunk, StepPlan
from events.options import SamplingParams

if TYPE_CHECKING:
    pass

logger = logging.getLogger("agent_server.generation")
MakeCache = Callable[[int], KVCache]
"""A cache of so many tokens."""
LEAST_BUDGET = 256
"""Tokens of a step below which a device that is too small is not tried any more."""
COSTLY = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1)
"""Whatever takes most memory for a row: filters, counts for penalties, log probabilities."""


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
    """Bytes that a step of `budget` tokens takes beside weights, keys and values and the sampler's state, and the
    budget: half as many tokens, and again, where so many do not fit. Raises torch.OutOfMemoryError if nothing does."""
    device = sampler.device
    while True:
        try:
            return _measured(model, make_cache, sampler, budget, page, kernel, flat), budget
        except Exception as error:
            if not out_of_memory(error) or budget <= LEAST_BUDGET:
                raise
            torch.cuda.empty_cache()
            logger.warning("Steps of %d tokens do not fit on %s; %d are tried.", budget, device, budget // 2)
            budget //= 2


def _measured(
    model: Any,
    make_cache: MakeCache,
    sampler: Sampler,
    budget: int,
    page: int,
    kernel: Kernel | None,
    flat: Forward | None,
) -> int:
    device, rows = sampler.device, len(sampler.occupants)
    lengths = _lengths(budget, rows)
    memory = PagedMemory(sum(-(-(length + 1) // page) for length in lengths) + 1, page)
    cache = make_cache((memory.total + 1) * page)
    runner = PackedRunner(model, memory, cache, device, kernel=kernel, flat=flat)
    before = _begin(device)
    plan = StepPlan([], [Chunk(sequence, 0, sequence.computed, True) for sequence in _sequences(memory, lengths)])
    _step(runner, sampler, plan)
    return torch.cuda.max_memory_allocated(device) - before


PICTURE_SIDE = 4096
"""Of a picture larger than which processors hand to a tower: Qwen2-VL's takes 12.8 million pixels by default."""
SOUND_SECONDS = 300
"""Of a sound, where the model hears any: a longer one is computed, too, in what else is free then."""


@torch.inference_mode()
def media_step(model: InnerTextModel, readers: Readers) -> int:
    """Bytes that a step with a picture or a sound takes while its tower computes the largest, and for embeddings that
    are kept then. One for which the device is too small is said in the log, and is its request's error."""
    largest = 0
    if readers.pictures is not None:
        pixels = bytes(PICTURE_SIDE * PICTURE_SIDE * 3)
        picture = Picture(width=PICTURE_SIDE, height=PICTURE_SIDE, pixels=pixels, digest=b"largest")
        largest = _tower_step(model, readers.pictures.prepare(picture), "pictures that the model reads")
    if readers.sounds is not None:
        samples = bytes(2 * readers.sounds.rate * (readers.sounds.seconds or SOUND_SECONDS))
        sound = Sound(samples=samples, rate=readers.sounds.rate, digest=b"longest")
        largest = max(largest, _tower_step(model, readers.sounds.prepare(sound), "sounds that the model hears"))
    return largest + KEPT_BYTES


def _tower_step(model: InnerTextModel, prepared: PreparedMedia, what: str) -> int:
    device = model.device
    before = _begin(device)
    try:
        MediaEncoder(model).features(prepared)
    except Exception as error:
        if not out_of_memory(error):
            raise
        torch.cuda.empty_cache()
        logger.warning("The largest %s do not fit on %s.", what, device)
    return torch.cuda.max_memory_allocated(device) - before


def _lengths(budget: int, rows: int) -> list[int]:
    """The budget as prompts for every row: each has its logits, which is the most that a step may have."""
    rows = min(rows, budget)
    return [budget // rows + (number < budget % rows) for number in range(rows)]


def _begin(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _sequences(memory: PagedMemory, lengths: list[int]) -> list[Sequence]:
    sequences = []
    for number, length in enumerate(lengths):
        sequence = Sequence(number, [1] * length, length, length + 1, row=number, state="running", shareable=False)
        memory.admit(sequence, alone=True)
        sequence.computed = length
        sequences.append(sequence)
    return sequences


def _step(runner: PackedRunner, sampler: Sampler, plan: StepPlan) -> Tensor:
    """Run and sample, and leave the sampler as it was."""
    rows = [sequence.row for sequence in plan.sampled]
    try:
        for row in rows:
            sampler.set(row, row, RowSampling(COSTLY, 0), [1], [])
        _, logits = runner.run(plan, sampler.last)
        return sampler.sample(logits, rows, [0] * len(rows)).tokens
    finally:
        for row in rows:
            sampler.clear(row)
        sampler.last.zero_()
