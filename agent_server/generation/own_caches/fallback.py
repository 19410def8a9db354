"""The path for models whose attention does not fit packed batches: positional biases, sparse indexers, states of a kind
of their own, whatever comes next.

Caches are made and understood by the model alone. Sequences that decode are run together on one cache with a row for
each (`cache_trees.py`), padded on the left as `generate` pads prompts, and so are prompts of about one length. Where
that gives other logits, each prompt is computed by itself, and only sequences of one length are run together; where
even that is wrong, each is run by itself. Which of these it is, is found out when the model is loaded
(`fallback_check.py`). Scheduling, sampling and control are the same as anywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from typing import Any, Literal

import torch
from torch import Tensor

from agent_server.generation.device import send
from agent_server.generation.own_caches.cache_trees import CacheLayout
from agent_server.generation.own_caches.own_caches import CacheGroup, CachesMemory
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

CACHE_NAMES = ("past_key_values", "cache_params", "state")
MaskForm = Literal["rows", "scores"]
"""Padding as transformers takes it: zeros and ones for each row's tokens, or what is added to each row's scores. Most
models make the second of the first; some make it wrong."""
Together = Literal["padded", "equal", "alone"]
"""Which sequences may share a forward: all, those of one length, none."""
PADDING = 0.25
"""Tokens of padding, for each of the prompts that share a forward, that computing them together is worth."""


class Unservable(Exception):
    """Why the model cannot even be run one sequence at a time, as half a sentence."""


class CachedRunner:
    """Runs sequences that decode `together`, and prompts too where these may be `batched`, else one after the other.
    layout: None where nobody shares a cache. chunked: prompts may be cut. turn: length beyond which the model's
    positions are others from the first token on; a sequence that grows past it is computed anew, since what its cache
    holds was computed with the former, and shares no forward with shorter ones. keeps: the model hands out what it has
    computed; where it does not, what stands for a cache is the tokens, and all of them are computed again in every
    step."""

    def __init__(
        self,
        model: Any,
        memory: CachesMemory,
        device: torch.device,
        *,
        turn: int | None = None,
        keeps: bool = True,
    ) -> None:
        self.model = model
        self.memory = memory
        self.device = device
        self.layout: CacheLayout | None = None
        self.together: Together = "alone"
        self.chunked = False
        self.batched = False
        self.turn = turn
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)
        self.keeps = keeps and self._cache_name is not None
        self.mask_form: MaskForm = "rows"
        self._selection = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._positions = "position_ids" in parameters
        self._masks = "attention_mask" in parameters
        self._caches = "use_cache" in parameters

    def like(self, layout: CacheLayout, together: Together, form: MaskForm) -> CachedRunner:
        """One that runs sequences together, with a memory of its own."""
        runner = CachedRunner(self.model, CachesMemory(1), self.device, turn=self.turn, keeps=self.keeps)
        runner.layout, runner.together, runner.mask_form = layout, together, form
        return runner

    def run(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        order: list[Sequence] = []
        logits: list[Tensor] = []
        for sequences in self._sorted(plan.decodes):
            group, group_logits = self._decode(sequences, last)
            by_number = {sequence.number: sequence for sequence in sequences}
            order += [by_number[number] for number in group.numbers]
            logits.append(group_logits)
        for chunks in self._batches(plan.chunks):
            group, group_logits = self.prompts(chunks)
            sampling = {chunk.sequence.number: chunk.sequence for chunk in chunks if chunk.samples}
            rows = [row for row, number in enumerate(group.numbers) if number in sampling]
            order += [sampling[group.numbers[row]] for row in rows]
            logits.append(group_logits if len(rows) == len(group_logits) else group_logits[rows])
        return order, torch.cat(logits) if logits else torch.empty(0, 1, device=self.device)

    # decoding

    def _sorted(self, decodes: list[Sequence]) -> list[list[Sequence]]:
        """Those that may share a forward, together. Who has just turned is computed anew and by itself."""
        kinds: dict[Hashable, list[Sequence]] = {}
        for sequence in decodes:
            turned = sequence.computed - 1 == self.turn
            kinds.setdefault(sequence if turned else self._kind(sequence), []).append(sequence)
        return list(kinds.values())

    def _kind(self, sequence: Sequence) -> Hashable:
        if self.together == "alone":
            return sequence
        turned = self.turn is not None and sequence.computed > self.turn
        return turned, sequence.computed if self.together == "equal" else 0

    def _decode(self, sequences: list[Sequence], last: Tensor) -> tuple[CacheGroup, Tensor]:
        first = sequences[0]
        if first.computed - 1 == self.turn:
            self.memory.groups.pop(first.number, None)
            computed_ids = send([first.tokens[: first.computed - 1]], torch.int64, self.device)
            ids = torch.cat([computed_ids, last[first.row].view(1, 1)], 1)
            group = self._group(first.number)
        else:
            numbers = [sequence.number for sequence in sequences]
            group = self._group(numbers[0]) if self.layout is None else self.memory.gathered(self.layout, numbers)
            rows = {sequence.number: sequence.row for sequence in sequences}
            order = send([rows[number] for number in group.numbers], torch.int64, self.device)
            ids = last.index_select(0, order)[:, None]
        return group, self.forward(group, ids)

    # prompts

    def _batches(self, chunks: list[Chunk]) -> list[list[Chunk]]:
        """Those that are computed in one forward: beginnings of about one length; what goes on, with as many tokens
        behind about as many."""
        if not self.batched:
            return [[chunk] for chunk in chunks]
        kinds: dict[int, list[Chunk]] = {}
        for chunk in sorted(chunks, key=_end):
            kinds.setdefault(chunk.length if chunk.start else 0, []).append(chunk)
        return [batch for alike in kinds.values() for batch in _parted(alike)]

    def prompts(self, chunks: list[Chunk]) -> tuple[CacheGroup, Tensor]:
        """The chunks' sequences as one group, and the logits `[rows, vocabulary]` behind each. Those that begin may be
        of several lengths, those that go on have one each."""
        numbers = [chunk.sequence.number for chunk in chunks]
        longest = max(chunk.length for chunk in chunks)
        if len(chunks) == 1:
            group = self._apart(numbers[0])
        elif chunks[0].start:
            assert self.layout is not None
            group = self.memory.gathered(self.layout, numbers)
        else:  # the padding comes first, so that a shorter one begins as many tokens before its own first one
            group = CacheGroup(numbers, [chunk.length - longest for chunk in chunks], 0, None)
            self.memory.put(group)
        tokens = {chunk.sequence.number: _tokens(chunk, longest) for chunk in chunks}
        ids = send([tokens[number] for number in group.numbers], torch.int64, self.device)
        return group, self.forward(group, ids)

    def _apart(self, number: int) -> CacheGroup:
        """The sequence's cache, by itself."""
        if self.layout is not None and number in self.memory.groups:
            return self.memory.gathered(self.layout, [number])
        return self._group(number)

    def _group(self, number: int) -> CacheGroup:
        group = self.memory.groups.get(number)
        if group is None:
            group = CacheGroup([number], [0], 0, None)
            self.memory.put(group)
        return group

    # a forward

    def forward(self, group: CacheGroup, ids: Tensor) -> Tensor:
        """The last logits `[rows, vocabulary]` of a group's next tokens `[rows, tokens]`, which enter its cache."""
        if not self.keeps:
            return self._recompute(group, ids)
        count = ids.shape[1]
        # Models change caches in place: what a step that failed left in one must not be gone on from.
        before, group.cache = group.cache, None
        named: dict[str, Any] = {str(self._cache_name): before}
        output = self._output(ids, group, count, use_cache=True, **named)
        cache = output.get(self._cache_name)
        if cache is None:
            raise Unservable("it does not hand out what it has computed, so that sequences cannot be told apart")
        self._entered(group, cache, count)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _recompute(self, group: CacheGroup, ids: Tensor) -> Tensor:
        """The same where the tokens stand for a cache."""
        count, width = ids.shape[1], group.width
        whole = ids if group.cache is None else torch.cat([group.cache, ids], 1)
        lengths, group.width, group.lengths = group.lengths, 0, [length - width for length in group.lengths]
        named = {"use_cache": False} if self._caches else {}
        output = self._output(whole, group, width + count, **named)
        group.width, group.lengths = width, lengths
        self._entered(group, whole, count)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _entered(self, group: CacheGroup, cache: object, count: int) -> None:
        group.cache = cache
        group.width += count
        group.lengths = [length + count for length in group.lengths]

    def _output(self, ids: Tensor, group: CacheGroup, count: int, **named: Any) -> Any:
        """What the model gives for the group's next `count` tokens."""
        if self._positions:  # not every model counts them from what its cache holds
            starts = send(group.lengths, torch.int64, self.device)
            named["position_ids"] = (starts[:, None] + torch.arange(count, device=self.device)).clamp_min(0)
        if (mask := self._mask(group, count)) is not None:
            named["attention_mask"] = mask
        return self.model(input_ids=ids, **named, **self._selection)

    def _mask(self, group: CacheGroup, count: int) -> Tensor | None:
        """What hides padding; None where there is none, or where it stands before the new tokens and nothing is kept
        for it."""
        if not self._masks or self.layout is None or min(group.lengths) == group.width:
            return None
        if not self.layout.pads and min(group.lengths) >= 0:
            return None
        padding = send([group.width - length for length in group.lengths], torch.int64, self.device)
        visible = torch.arange(group.width + count, device=self.device) >= padding[:, None]
        if self.mask_form == "rows" or count > 1:
            return visible.long()
        dtype = self.model.dtype
        hidden = torch.zeros(visible.shape, dtype=dtype, device=self.device).masked_fill_(
            ~visible, torch.finfo(dtype).min
        )
        return hidden[:, None, None]


def _end(chunk: Chunk) -> int:
    return chunk.start + chunk.length


def _tokens(chunk: Chunk, count: int) -> list[int]:
    """Its tokens behind padding, `count` in all."""
    return [0] * (count - chunk.length) + chunk.sequence.tokens[chunk.start : _end(chunk)]


def _parted(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Chunks, the shortest first, in batches with little padding."""
    batches: list[list[Chunk]] = []
    total = 0
    for chunk in chunks:
        count = len(batches[-1]) + 1 if batches else 0
        if batches and count * _end(chunk) <= (1 + PADDING) * (total + _end(chunk)):
            batches[-1].append(chunk)
        else:
            batches.append([chunk])
            total = 0
        total += _end(chunk)
    return batches
