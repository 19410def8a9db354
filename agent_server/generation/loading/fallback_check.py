"""Find out, by tests at load time, how a model that does not fit packed batches can run on its own caches.

Sequences of several lengths, one longer than the model's window, run as they will be served: prompts together or
separately, then token by token, with one sequence that joins while others decode and one that leaves. All logits are
compared with the model's own forward of each whole sequence alone, without a cache.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.faults import first_line
from agent_server.generation.loading.probe import precision, rope_switch
from agent_server.generation.own_caches.cache_trees import DifferentLayouts, learn, tensor_bytes
from agent_server.generation.own_caches.fallback import CachedRunner, MaskForm, Together, UnservableModel
from agent_server.generation.own_caches.own_caches import CacheGroup, CachesMemory
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

logger = logging.getLogger("agent_server.generation")
LENGTHS = (9, 9, 14, 5)
"""Tokens of the prompts: two of the same length, one that is longer than the model's window, if it has one, and one
that joins while the others decode."""
LONGEST = 1100
"""Tokens of the longest test prompt; a longer window is not exceeded."""
STEPS = 4
LAST = 3
"""Tokens of the second chunks of prompts that are tested together."""
PROBED = (8, 24)
"""Tokens of the two prompts that measure a cache's growth, both longer than a convolution."""
LEARNED = (2, 24)
"""Tokens of the prompts that reveal a cache's layout. The first is shorter than any window, so that it differs from the
second, which is longer than the tokens that a model compresses into one entry."""
EXACT = 1e-3
ROUNDED = 0.1
"""Largest difference of logits, relative to the largest, that is attributed to rounding in 32 and in 16 bits. If single
sequences already differ more (a token reaches another expert, or an indexer skips it), the limit is twice that
difference."""
APART = 0.5
"""The limit for sequences that share nothing; sequences that wrongly share states differ by more."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Test sequences, and their expected logits from the end of their prompts on."""

    sequences: list[Sequence]
    expected: list[Tensor]


def find_runner(model: Any, device: torch.device) -> tuple[CachedRunner, str]:
    """Return a runner with memory for the tests, and why sequences cannot share forwards better, or "". Raises
    UnservableModel."""
    switch = rope_switch(model.config)
    trial = _trial(model, device, switch)
    alone, worst = _single_runner(model, device, switch, trial)
    limit = max(EXACT if precision(model) in (torch.float32, torch.float64) else ROUNDED, 2 * worst)
    runner, reason = _joint_runner(alone, trial, limit)
    runner.chunked = switch is None and runner.has_cache
    runner.batched = runner.chunked and runner.together == "padded"
    if runner.batched:
        runner.batched = _fault(runner, trial, limit) is None
    if runner.chunked and not runner.batched:
        runner.chunked = _fault(runner, trial, limit) is None
    if not runner.has_cache:
        reason = "; ".join(filter(None, (reason, NO_CACHE)))
    return runner, reason


def _joint_runner(alone: CachedRunner, trial: _Trial, limit: float) -> tuple[CachedRunner, str]:
    """Return a runner for the first correct way to run sequences together, and what is wrong with the better ways."""
    try:
        few, many = LEARNED[0], max([LEARNED[1], *(rate + 1 for rate in _rates(alone.model))])
        probes = (1, few), (2, few), (1, many)
        short, pair, long = (_cache(alone, rows, tokens) for rows, tokens in probes)
        layout = learn(short, pair, long, (few, many))
    except DifferentLayouts as reason:
        return alone, str(reason)
    except Exception as error:
        return alone, f"its cache cannot be understood ({type(error).__name__}: {first_line(error)})"
    reasons: dict[Together, str] = {}
    for together, form in WAYS:
        runner = alone.like(layout, together, form)
        if (fault := _fault(runner, trial, limit)) is None:
            reasons.pop(together, None)
            return runner, "; ".join(reasons.values())
        reasons.setdefault(together, f"{BATCH_FAULTS[together]} ({fault})")
    return alone, "; ".join(reasons.values())


NO_CACHE = "it hands out nothing that it has computed, so that every step computes all tokens again"
BATCH_FAULTS: dict[Together, str] = {
    "padded": "with longer sequences beside it, a sequence gives other logits",
    "equal": "with others of its length beside it, a sequence gives other logits",
}
WAYS: tuple[tuple[Together, MaskForm], ...] = (("padded", "rows"), ("padded", "scores"), ("equal", "rows"))


def _single_runner(
    model: object, device: torch.device, switch: int | None, trial: _Trial
) -> tuple[CachedRunner, float]:
    """Return a runner that runs each sequence separately, and its largest difference from the model's own forward."""
    faults = []
    for has_cache in (True, False):
        runner = CachedRunner(model, CachesMemory(1), device, rope_switch=switch, has_cache=has_cache)
        try:
            worst = _try(runner, trial)
        except Exception as error:
            logger.debug("Running it with its own cache fails.", exc_info=error)
            explained = isinstance(error, UnservableModel)
            faults.append(
                str(error) if explained else f"running it fails ({type(error).__name__}: {first_line(error)})"
            )
            continue
        if worst <= APART:
            return runner, worst
        faults.append("two sequences in turns give other logits than each by itself")
    raise UnservableModel(faults[0])


def _rates(model: Any) -> list[int]:
    """Return the numbers of tokens that the model's layers compress into one entry."""
    return [*(getattr(model.config.get_text_config(), "compress_rates", None) or {}).values()]


@torch.inference_mode()
def _cache(runner: CachedRunner, rows: int, tokens: int) -> object:
    group = CacheGroup(list(range(rows)), [0] * rows, 0, None)
    runner.forward_group(group, torch.ones(rows, tokens, dtype=torch.int64, device=runner.device))
    return group.cache


def cache_bytes(runner: CachedRunner) -> tuple[int, int]:
    """Measure the bytes of the model's own cache for a token and, independent of the length, for a sequence. Windows
    and states that stop growing need less later; then more memory is reserved than necessary."""
    short, long = (tensor_bytes(_cache(runner, 1, tokens)) for tokens in PROBED)
    per_token = (long - short) // (PROBED[1] - PROBED[0])
    return max(0, per_token), max(0, short - per_token * PROBED[0])


# tests


def _fault(runner: CachedRunner, trial: _Trial, limit: float) -> str | None:
    """Return what is wrong with the runner, as a clause; None if it is correct."""
    try:
        worst = _try(runner, trial)
    except Exception as error:
        logger.debug("Running sequences together fails.", exc_info=error)
        return f"{type(error).__name__}: {first_line(error)}"
    return None if worst <= limit else f"by {worst:.2g} of the largest"


@torch.inference_mode()
def _try(runner: CachedRunner, trial: _Trial) -> float:
    """Return the largest difference of logits, relative to the largest."""
    runner.memory.groups.clear()
    *early, late = trial.sequences
    last = torch.zeros(len(trial.sequences), dtype=torch.int64, device=runner.device)
    if runner.batched:
        # Prompts together in two chunks: first chunks of several lengths, then the same number of tokens for each.
        runner.prompts([Chunk(sequence, 0, sequence.prompt_length - LAST, False) for sequence in early])
        group, logits = runner.prompts([Chunk(s, s.prompt_length - LAST, LAST, True) for s in early])
        for sequence in early:
            sequence.computed = sequence.prompt_length
        rows = {number: row for row, number in enumerate(group.numbers)}
        worst = max(_difference(sequence, logits[rows[sequence.number]], trial) for sequence in early)
    else:
        worst = max(_prefill(runner, sequence, last, trial) for sequence in early)
    for step in range(STEPS):
        running = early if step < 2 else [*early[1:], late]
        if step == 2:
            runner.memory.groups.pop(early[0].number)
            worst = max(worst, _prefill(runner, late, last, trial))
        for sequence in running:
            last[sequence.row] = sequence.tokens[sequence.computed]
            sequence.computed += 1
        order, logits = runner.forward(StepPlan(list(running), []), last)
        decode = max(_difference(sequence, logits[row], trial) for row, sequence in enumerate(order))
        worst = max(worst, decode)
    runner.memory.groups.clear()
    return worst


@torch.inference_mode()
def _trial(model: Any, device: torch.device, switch: int | None) -> _Trial:
    """Return the test sequences, with the logits of the model's own forward."""
    text = model.config.get_text_config()
    window = max(getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size"))
    window = max([window, *_rates(model)])
    most = min(getattr(text, "max_position_embeddings", None) or LONGEST, switch or LONGEST, LONGEST) - STEPS
    lengths = [*LENGTHS[:2], max(LENGTHS[2], min(window + 7, most)), LENGTHS[3]]
    count = text.vocab_size
    rows = [[(7919 * (at + 3 * n) + 11) % count for at in range(length + STEPS)] for n, length in enumerate(lengths)]
    sequences = [
        Sequence(number, tokens, length, len(tokens) + 1, row=number, state="running")
        for number, (tokens, length) in enumerate(zip(rows, lengths, strict=True))
    ]
    options = {"use_cache": False, "logits_to_keep": STEPS + 1}
    named = {name: option for name, option in options.items() if name in inspect.signature(model.forward).parameters}
    outputs = [model(input_ids=torch.tensor([s.tokens], device=device), **named).logits[0] for s in sequences]
    return _Trial(sequences, [logits[-STEPS - 1 :].float() for logits in outputs])


def _prefill(runner: CachedRunner, sequence: Sequence, last: Tensor, trial: _Trial) -> float:
    length = sequence.prompt_length
    cuts = [0, length]
    if runner.chunked and length > 4:
        cuts = [0, 3, length] if sequence.number % 2 else [0, 3, length - 1, length]
    for start, end in pairwise(cuts):
        _, logits = runner.forward(StepPlan([], [Chunk(sequence, start, end - start, end == length)]), last)
    sequence.computed = length
    return _difference(sequence, logits[0], trial)


def _difference(sequence: Sequence, actual: Tensor, trial: _Trial) -> float:
    expected = trial.expected[sequence.number][sequence.computed - sequence.prompt_length]
    off = float((expected - actual).abs().max() / expected.abs().max().clamp_min(1e-6))
    return off if off == off else float("inf")
