"""Logits → tokens, for all rows at once, each with its own parameters.

The order is that of transformers: penalties, then minimum length, bias and grammar, then temperature, top_k, top_p,
min_p, typical_p. A token is drawn by inverse transform sampling with one random number, a function of the row's seed
and the number of tokens generated so far, so the draw depends on nothing but the row itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.generation.device import Arrival, send
from agent_server.generation.sampling.masks import Choices, Masks
from agent_server.generation.sampling.penalties import Bonus, Penalties
from events.options import SamplingParams

MASK = (1 << 64) - 1


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)
FIRST = signed(0xBF58476D1CE4E5B9)
SECOND = signed(0x94D049BB133111EB)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return a float32 in (0, 1], with 24 random bits, for each pair of a seed and a position (int64)."""
    state = _mix(seeds) + (positions + 1) * GOLDEN
    return ((_mix(state) >> 40) & 0xFFFFFF).add(1).to(torch.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * FIRST
    state = (state ^ _shift(state, 27)) * SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right logically."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


CANDIDATES = 256
"""Number of top tokens that are sorted at first. A row that may keep more of them is sorted whole."""
FEW = 64
"""Number of top tokens that are sorted for a row whose top_k is not larger."""

MIN_TEMPERATURE = 1e-4
"""Below it sampling is greedy."""

GREEDY, PLAIN, NARROW, LIMITED, FILTERED, TYPICAL = range(6)
_TEMPERATURE, _TOP_P, _MIN_P, _TYPICAL = range(4)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """A row's parameters with the model's defaults filled in. ends: tokens that are ruled out until `min_tokens` are
    generated."""

    params: SamplingParams
    seed: int
    ends: tuple[int, ...] = ()

    @property
    def kind(self) -> int:
        """The sampling method of the row."""
        params = self.params
        if (params.temperature or 0.0) < MIN_TEMPERATURE:
            return GREEDY
        if params.typical_p is not None and params.typical_p < 1:
            return TYPICAL
        if params.top_k and params.top_k <= CANDIDATES:
            return NARROW if params.top_k <= FEW else LIMITED
        filtered = params.top_k or (params.top_p or 1.0) < 1 or params.min_p
        return FILTERED if filtered else PLAIN


@dataclass(frozen=True, slots=True)
class TokensOnHost:
    """A step's sampled tokens on the host, in the order of its rows. logprobs: log probabilities of the tokens, if any
    row requests them. top: ids and log probabilities of the most likely tokens."""

    tokens: list[int]
    logprobs: list[float] | None = None
    top: tuple[list[list[int]], list[list[float]]] | None = None


@dataclass(slots=True)
class SampledTokens:
    """A step's sampled tokens `[rows]` on the device. logprobs: their log probabilities before penalties and filters,
    if any row requests them. top: ids and log probabilities of the most likely tokens, `[rows, most]` each. on_host:
    all of these on the host, after `wait`."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None
    on_host: TokensOnHost = TokensOnHost([])
    _arrival: Arrival | None = None

    def fetch(self) -> None:
        """Start the copy to the host, behind what is queued on the device so far."""
        parts = (self.tokens, self.logprobs, *(self.top or ()))
        self._arrival = Arrival(*(part for part in parts if part is not None))

    def wait(self) -> None:
        """Wait for the copy to the host, but not for what was queued after it."""
        if self._arrival is None:
            return
        tokens, *rest = self._arrival.wait()
        logprobs = None if self.logprobs is None else rest.pop(0)
        self.on_host = TokensOnHost(tokens, logprobs, (rest[0], rest[1]) if self.top is not None else None)


class Sampler:
    """The sampling state of `rows` rows. `last`: each row's newest token. `occupants`: the numbers of the sequences in
    the rows, -1 for none."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self.vocab_size = vocab_size
        self.last = torch.zeros(rows, dtype=torch.int64, device=device)
        self.settings: list[RowSampling | None] = [None] * rows
        self.occupants = [-1] * rows
        self._kinds = [GREEDY] * rows
        self._special = [False] * rows
        self._allowed: list[Tensor | None] = [None] * rows
        self._numbers = torch.ones(rows, 4, device=device)
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._penalties = Penalties(rows, vocab_size, device)

    def set(self, row: int, occupant: int, settings: RowSampling, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Set the row's parameters and the tokens that penalties count."""
        params = settings.params
        self.occupants[row] = occupant
        self.settings[row] = settings
        self._kinds[row] = settings.kind
        self._special[row] = bool(
            params.logit_bias or params.min_tokens or params.logprobs is not None or params.allowed_token_ids
        )
        allowed = sorted(set(params.allowed_token_ids))
        self._allowed[row] = send(allowed, torch.int64, self.device) if allowed else None
        values = [params.temperature or 1.0, params.top_p or 1.0, params.min_p or 0.0, params.typical_p or 1.0]
        self._numbers[row] = send(values, torch.float32, self.device)
        self._top_k[row] = min(params.top_k or self.vocab_size, self.vocab_size)
        self._seeds[row] = signed(settings.seed)
        self._penalties.set(row, params, prompt, output)

    def clear(self, row: int) -> None:
        """Reset a row that its sequence has left."""
        self.settings[row] = None
        self.occupants[row] = -1
        self._special[row] = False
        self._allowed[row] = None
        self._penalties.clear(row)

    def sample(
        self,
        logits: Tensor,
        rows: list[int],
        positions: list[int],
        masks: Masks | None = None,
        bonuses: Sequence[Bonus] = (),
    ) -> SampledTokens:
        """Sample a token for each row of `logits` `[rows, vocabulary]`, float32, which may be changed in place, and
        store it in `last`. positions: the number of tokens each row has generated so far. bonuses: for each row, what
        is added to logits for this token only; may be empty."""
        index = send(rows, torch.int64, self.device)
        raw = logits
        logits = self._penalties.apply(logits, rows, index)
        special = any(self._special[row] for row in rows) or any(bonuses)
        if special:
            logits = self._adjust(raw, logits, rows, positions, bonuses)
        if masks is not None:
            logits = masks.apply(logits.clone() if special and logits is raw else logits)
        if masks is None or masks.few is None:
            tokens = self._pick(logits, rows, index, positions)
        else:
            tokens = self._pick_few(masks.few, masks.places, logits, rows, index, positions)
        self.last.index_copy_(0, index, tokens)
        self._penalties.count(rows, index, tokens)
        sampled = SampledTokens(tokens)
        counts = [settings.params.logprobs for row in rows if (settings := self.settings[row])] if special else []
        most = max((count for count in counts if count is not None), default=None)
        if most is not None:
            logprobs = raw.log_softmax(-1)
            sampled.logprobs = logprobs.gather(1, tokens[:, None])[:, 0]
            if most:
                values, ids = logprobs.topk(min(most, self.vocab_size), -1)
                sampled.top = (ids, values)
        sampled.fetch()
        return sampled

    def _adjust(
        self, raw: Tensor, logits: Tensor, rows: list[int], positions: list[int], bonuses: Sequence[Bonus]
    ) -> Tensor:
        """Apply minimum lengths, biases, bonuses and `allowed_token_ids`."""
        at: list[int] = []
        ids: list[int] = []
        added: list[float] = []
        for number, (row, position) in enumerate(zip(rows, positions, strict=True)):
            settings = self.settings[row]
            assert settings is not None
            bias = settings.params.logit_bias
            at += [number] * len(bias)
            ids += bias.keys()
            added += bias.values()
            if position < settings.params.min_tokens:
                at += [number] * len(settings.ends)
                ids += settings.ends
                added += [-torch.inf] * len(settings.ends)
        for number, bonus in enumerate(bonuses):
            at += [number] * len(bonus)
            ids += bonus.keys()
            added += bonus.values()
        limited = [(number, allowed) for number, row in enumerate(rows) if (allowed := self._allowed[row]) is not None]
        if not at and not limited:
            return logits
        logits = logits.clone() if logits is raw else logits
        places = (send(at, torch.int64, self.device), send(ids, torch.int64, self.device))
        logits.index_put_(places, send(added, torch.float32, self.device), accumulate=True)
        for number, allowed in limited:
            allowed_logits = logits[number, allowed]
            logits[number].fill_(-torch.inf).index_copy_(0, allowed, allowed_logits)
        return logits

    def _pick_few(
        self, few: Choices, at: list[int], logits: Tensor, rows: list[int], index: Tensor, positions: list[int]
    ) -> Tensor:
        """Sample the rows `at` these places from their few choices only, and the others from all logits."""

        def pick(logits: Tensor, places: list[int], members: Tensor) -> Tensor:
            return self._pick(logits, [rows[i] for i in places], index[members], [positions[i] for i in places])

        tokens = torch.empty(len(rows), dtype=torch.int64, device=self.device)
        members = send(at, torch.int64, self.device)
        tokens.index_copy_(0, members, few.tokens(pick(few.of(logits, at), at, members)))
        others = sorted(set(range(len(rows))).difference(at))
        if others:
            members = send(others, torch.int64, self.device)
            tokens.index_copy_(0, members, pick(logits.index_select(0, members), others, members))
        return tokens

    def _pick(self, logits: Tensor, rows: list[int], index: Tensor, positions: list[int]) -> Tensor:
        kinds = [self._kinds[row] for row in rows]
        present = set(kinds)
        if present == {GREEDY}:
            return most_likely(logits)
        seeds = self._seeds.index_select(0, index)
        draws = uniform(seeds, send(positions, torch.int64, self.device))
        if len(present) == 1:
            return self._pick_kind(kinds[0], logits, index, draws)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=self.device)
        for kind in present:
            members = send([i for i, k in enumerate(kinds) if k == kind], torch.int64, self.device)
            picked = self._pick_kind(kind, logits[members], index[members], draws[members])
            tokens.index_copy_(0, members, picked)
        return tokens

    def _pick_kind(self, kind: int, logits: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        if kind == GREEDY:
            return most_likely(logits)
        numbers = self._numbers.index_select(0, index)
        scaled = logits / numbers[:, _TEMPERATURE, None]
        if kind == PLAIN:
            return inverse(scaled.softmax(-1), draws)
        top_k = self._top_k.index_select(0, index)
        return pick_filtered(scaled, top_k, numbers, draws, kind)


def most_likely(logits: Tensor) -> Tensor:
    """Return the index of the first maximum of each row; on the CPU with numpy, which is ten times faster."""
    return logits.argmax(-1) if logits.device.type != "cpu" else torch.from_numpy(logits.numpy().argmax(-1))


def inverse(weights: Tensor, draws: Tensor) -> Tensor:
    """Return for each row the first index at which the cumulative weights reach the draw's share of their sum. Draws
    are above 0, so an index of weight 0 is never picked."""
    cumulated = weights.cumsum(-1)
    targets = draws[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, targets)[:, 0].clamp_max_(weights.shape[-1] - 1)


def pick_filtered(scaled: Tensor, top_k: Tensor, numbers: Tensor, draws: Tensor, kind: int) -> Tensor:
    """Sort, filter and draw. How a row is sorted must depend on that row alone, since sorts order equal logits
    differently. NARROW and LIMITED rows keep no more tokens than are sorted. Of the other rows, those that may keep
    more are sorted whole; on CUDA all of them are, because finding out which would wait for the device."""
    width = FEW if kind == NARROW else CANDIDATES
    if kind == TYPICAL or scaled.shape[-1] <= width or (kind == FILTERED and scaled.is_cuda):
        return _pick_whole(scaled, top_k, numbers, draws, kind)
    total = scaled.logsumexp(-1, keepdim=True)
    values, ids = scaled.topk(width, -1)
    tokens = _pick_sorted((values - total).exp(), ids, top_k, scaled.shape[-1], numbers, draws, kind)
    if kind != FILTERED:
        return tokens
    # Rows whose filters may keep more tokens than the candidates.
    share = (values - total).exp_()
    beyond = (share.sum(-1) < numbers[:, _TOP_P]) & (top_k > values.shape[-1])
    may_keep_more = beyond & (share[:, -1] >= numbers[:, _MIN_P] * share[:, 0])
    rows = may_keep_more.nonzero()[:, 0]
    if len(rows):
        tokens[rows] = _pick_whole(scaled[rows], top_k[rows], numbers[rows], draws[rows], kind)
    return tokens


def _pick_whole(scaled: Tensor, top_k: Tensor, numbers: Tensor, draws: Tensor, kind: int) -> Tensor:
    values, ids = scaled.sort(stable=True, dim=-1, descending=True)
    return _pick_sorted(values.softmax(-1), ids, top_k, scaled.shape[-1], numbers, draws, kind)


def _pick_sorted(
    weights: Tensor, ids: Tensor, top_k: Tensor, vocab_size: int, numbers: Tensor, draws: Tensor, kind: int
) -> Tensor:
    """Filter and draw. weights: probabilities in descending order, with their ids; the tail of a row may be missing."""
    weights = filtered(weights, top_k, vocab_size, numbers)
    if kind == TYPICAL:
        # Locally typical sampling (Meister et al. 2022): keep the tokens whose surprise is closest to the entropy.
        mass = numbers[:, _TYPICAL, None]
        shares = weights / weights.sum(-1, keepdim=True)
        surprise = -shares.log()
        entropy = torch.where(shares > 0, shares * surprise, 0.0).sum(-1, keepdim=True)
        order = (surprise - entropy).abs().argsort(stable=True, dim=-1)
        cumulated = shares.gather(1, order).cumsum(-1)
        last = (cumulated < mass).sum(-1, keepdim=True).clamp_max(weights.shape[-1] - 1)
        ranks = torch.arange(weights.shape[-1], device=weights.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, order, ranks)
        weights = weights.masked_fill(rank > last, 0.0)
    return ids.gather(1, inverse(weights, draws)[:, None])[:, 0]


def filtered(weights: Tensor, top_k: Tensor, vocab_size: int, numbers: Tensor) -> Tensor:
    """Set the weights that top_k, top_p and min_p exclude to 0, in place. weights: in descending order."""
    ranks = torch.arange(weights.shape[-1], device=weights.device)[None]
    weights = weights.masked_fill_(ranks >= top_k[:, None], 0.0)
    cumulated = weights.cumsum(-1)
    top_k_mass = torch.where(top_k < vocab_size, cumulated[:, -1], 1.0)
    outside = cumulated - weights >= (numbers[:, _TOP_P] * top_k_mass)[:, None]
    outside |= weights < numbers[:, _MIN_P, None] * weights[:, :1]
    outside[:, 0] = False
    return weights.masked_fill_(outside, 0.0)
