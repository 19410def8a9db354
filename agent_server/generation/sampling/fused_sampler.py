"""The sampler for GPUs: two launches for most steps, without sorting the vocabulary (`kernels/sample_kernels.py`).

Its filters keep the same tokens with the same probabilities as `sampler.py`. Since it accumulates probabilities in the
order of ids, not of size, the same random number picks another token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_server.generation.device import send
from agent_server.generation.faults import first_line, raise_if_lost
from agent_server.generation.sampling.masks import Masks
from agent_server.generation.sampling.penalties import Bonus
from agent_server.generation.sampling.sampler import GREEDY, TYPICAL, RowSampling, SampledTokens, Sampler, filtered
from events.options import SamplingParams

CHECKED_PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=1.3, top_k=300),
)


def make_sampler(rows: int, vocab_size: int, device: torch.device, slow: list[str]) -> Sampler:
    """Return the fused sampler if it works on this device, else the one in torch. slow: gets the reason why it does not
    work on a GPU."""
    if device.type != "cuda":
        return Sampler(rows, vocab_size, device)
    try:
        agrees(FusedSampler(len(CHECKED_PARAMS), vocab_size, device))
        return FusedSampler(rows, vocab_size, device)
    except Exception as error:  # torch, Triton or a missing compiler may raise anything
        raise_if_lost(error, device)
        reason = f"{type(error).__name__}: {first_line(error)}"
        slow.append(f"The fused sampler cannot be used, and sampling is slower: {reason}.")
        return Sampler(rows, vocab_size, device)


class FusedSampler(Sampler):
    """A Sampler that runs the steps it supports in two kernels, with the same state."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        from agent_server.generation.sampling.kernels import sample

        super().__init__(rows, vocab_size, device)
        self._launch = sample
        self._parameters = sample.Parameters(self._numbers, self._top_k, self._seeds, self.last)

    def set(self, row: int, occupant: int, settings: RowSampling, prompt: Sequence[int], output: Sequence[int]) -> None:
        super().set(row, occupant, settings, prompt, output)
        if settings.kind == GREEDY:
            self._numbers[row, 0].zero_()

    def sample(
        self,
        logits: Tensor,
        rows: list[int],
        positions: list[int],
        masks: Masks | None = None,
        bonuses: Sequence[Bonus] = (),
    ) -> SampledTokens:
        kinds = {self._kinds[row] for row in rows}
        counts = self._penalties.counts(rows)
        special = any(self._special[row] for row in rows) or any(bonuses)
        if TYPICAL in kinds or (kinds == {GREEDY} and masks is None and counts is None and not special):
            return super().sample(logits, rows, positions, masks, bonuses)
        index, at = send([rows, positions], torch.int64, self.device)
        raw = logits
        if counts is not None or masks is not None:
            numbered_masks = None
            if masks is not None:
                # The number of each row's mask, -1 for none, and the masks' bits.
                numbers = [-1] * len(rows)
                for number, place in enumerate(masks.rows):
                    numbers[place] = number
                bits = masks.bits.to(self.device, non_blocking=True)
                numbered_masks = send(numbers, torch.int32, self.device), bits
            logits = self._launch.adjust(logits, index, counts, numbered_masks)
        if special:
            logits = self._adjust(raw, logits, rows, positions, bonuses)
        requested = [settings.params.logprobs for row in rows if (settings := self.settings[row]) is not None]
        most = max((count for count in requested if count is not None), default=None)
        picked = self._launch.pick(logits, raw, index, at, self._parameters, counts, logprobs=most is not None)
        sampled = SampledTokens(picked.tokens, picked.logprobs)
        if most and picked.totals is not None:
            values, ids = raw.topk(min(most, self.vocab_size), -1)
            sampled.top = (ids, values - picked.totals[:, None])
        sampled.fetch()
        return sampled


@torch.inference_mode()
def agrees(sampler: FusedSampler) -> None:
    """Check the sampler's picks. Raises RuntimeError if it picks a token that the filters exclude, or another than the
    most likely one where sampling is greedy."""
    generator = torch.Generator(sampler.device).manual_seed(1)
    shape = (len(CHECKED_PARAMS), sampler.vocab_size)
    logits = torch.randn(shape, generator=generator, device=sampler.device) * 3
    rows = list(range(len(CHECKED_PARAMS)))
    for row, params in enumerate(CHECKED_PARAMS):
        sampler.set(row, row, RowSampling(params, seed=row), [], [])
    values, ids = (logits / torch.tensor([[p.temperature or 1.0] for p in CHECKED_PARAMS], device=sampler.device)).sort(
        stable=True, descending=True
    )
    top_k = torch.tensor([1 if not p.temperature else p.top_k or sampler.vocab_size for p in CHECKED_PARAMS])
    numbers = torch.tensor([[1.0, p.top_p or 1.0, p.min_p or 0.0, 1.0] for p in CHECKED_PARAMS], device=sampler.device)
    weights = filtered(values.softmax(-1), top_k.to(sampler.device), sampler.vocab_size, numbers)
    allowed = torch.zeros(shape, dtype=torch.bool, device=sampler.device).scatter_(1, ids, weights > 0)
    for position in range(8):
        sampled = sampler.sample(logits.clone(), rows, [position] * len(rows))
        sampled.wait()
        if not allowed.gather(1, sampled.tokens.to(sampler.device)[:, None]).all():
            raise RuntimeError("the kernel picks tokens that the filters exclude")
