"""Launch the kernels of `sample_kernels.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.generation.sampling.kernels.sample_kernels import (
    SUMMARIES,
    adjust_kernel,
    pick_kernel,
    summarise_kernel,
)
from agent_server.generation.sampling.penalties import TokenCounts

SEGMENTS = 128
"""The number of segments of a row, a power of two. top_k of no more has a lower bound from their largest logits."""
LANES = 16
"""The number of lists of a segment, a power of two. All lists of a row should be a few for each thread of a program."""
PART = 2
"""The number of segments that one program summarises."""
ADJUST_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of all rows. numbers: `[rows, 4]` float32: temperature (0 is greedy), top_p, min_p, and one that
    is ignored. top_k: `[rows]` int64, at least the vocabulary's size for no limit. seeds: `[rows]` int64. last:
    `[rows]` int64, where sampled tokens are stored."""

    numbers: Tensor
    top_k: Tensor
    seeds: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class PickedTokens:
    """Sampled tokens `[places]`. logprobs, totals: if requested, the tokens' log probabilities, and the number to
    subtract from any other logit for its log probability, `[places]` float32 each."""

    tokens: Tensor
    logprobs: Tensor | None
    totals: Tensor | None


def adjust(logits: Tensor, rows: Tensor, counts: TokenCounts | None, masks: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return logits `[places, vocabulary]` float32 with penalties applied, and minus infinity for masked tokens. masks:
    the number of each place's mask, `[places]` int32, below 0 for none, and the bits `[masks, words]` int32, where a
    set bit allows a token."""
    places, vocab_size = logits.shape
    out = torch.empty_like(logits)
    # Stand-ins of the right rank: the variant without masks reads neither.
    numbers, bits = masks if masks is not None else (rows, rows[None])
    adjust_kernel[(places, -(-vocab_size // ADJUST_BLOCK))](
        out, logits, rows,
        counts.factors if counts else logits, counts.generated if counts else rows,
        counts.prompts.view(torch.int8) if counts else rows, numbers, bits,
        vocab_size, bits.shape[1],
        PENALTIES=counts is not None, MASKS=masks is not None, BLOCK=ADJUST_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def segment_width(vocab_size: int) -> int:
    """Return the number of tokens of a segment, a multiple of LANES."""
    return -(-vocab_size // (SEGMENTS * LANES)) * LANES


def pick(
    logits: Tensor,
    raw: Tensor,
    rows: Tensor,
    positions: Tensor,
    parameters: Parameters,
    counts: TokenCounts | None = None,
    *,
    logprobs: bool = False,
) -> PickedTokens:
    """Sample a token for each row of logits `[places, vocabulary]` float32, store it in `last`, and count it in
    `counts`. rows, positions: `[places]` int64. raw: the logits that log probabilities are computed from."""
    places, vocab_size = logits.shape
    tokens = torch.empty(places, dtype=torch.int64, device=logits.device)
    # One allocation for log probabilities and totals, since every step makes it.
    scores = torch.empty(2, places, dtype=torch.float32, device=logits.device)
    width = segment_width(vocab_size)
    width_block = 1 << (width - 1).bit_length()
    summaries = torch.empty(places, SUMMARIES.value, SEGMENTS, dtype=torch.float32, device=logits.device)
    lists = torch.empty(places, SEGMENTS, width, dtype=torch.float32, device=logits.device)
    summarise_kernel[(places, SEGMENTS // PART)](
        summaries, logits, raw, rows, parameters.numbers, vocab_size, width,
        LOGPROBS=logprobs, SEGMENTS=SEGMENTS, PART=PART, WIDTH=width_block, num_warps=4,
    )  # fmt: skip
    # One program a row: it sees the whole row's summary, so that nothing is combined across programs.
    pick_kernel[(places,)](
        tokens, scores[0], scores[1], parameters.last, summaries, lists, logits, raw, rows, positions,
        parameters.numbers, parameters.top_k, parameters.seeds, counts.generated if counts else rows,
        vocab_size, width, LOGPROBS=logprobs, COUNTS=counts is not None,
        SEGMENTS=SEGMENTS, LANES=LANES, WIDTH=width_block, num_warps=16,
    )  # fmt: skip
    return PickedTokens(tokens, scores[0] if logprobs else None, scores[1] if logprobs else None)
