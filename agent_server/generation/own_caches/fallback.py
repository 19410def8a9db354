"""The runner for models whose attention does not fit packed batches, such as those with positional biases, sparse
indexers or recurrent states.

The model creates its own caches and only the model knows their contents. Decoding sequences run together on one cache
with a row for each (`cache_trees.py`), padded on the left as `generate` pads prompts; prompts of similar length do too.
If that changes the logits, prompts are computed one by one and only sequences of equal length decode together; if that
changes them too, every sequence runs alone. `fallback_check.py` finds out which applies when the model is loaded.
Scheduling, sampling and control are the same as with packed batches.
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
"""The form of the padding mask: zeros and ones for each row's tokens, or a bias on each row's attention scores. Most
models compute the second from the first; some compute it wrongly."""
Together = Literal["padded", "equal", "alone"]
"""Which sequences may share a forward: all, those of equal length, none."""
PADDING = 0.25
"""The share of padding tokens up to which computing prompts together is faster than one by one."""


class UnservableModel(Exception):
    """The model cannot be run even one sequence at a time. The message is a clause."""


class CachedRunner:
    """Runs a model on its own caches.

    together: which sequences decode in one forward. batched: prompts may share a forward too. chunked: prompts may be
    divided into chunks. layout: None if no sequences share a cache.
    rope_switch: the length beyond which the model uses other rotary embeddings for all tokens (LongRoPE), or None. A
    sequence that grows past it is computed again, and it shares no forward with shorter ones.
    has_cache: the model returns its cache. For a model that does not, a group's "cache" is its token ids, and every
    step computes all of them again.
    """

    def __init__(
        self,
        model: Any,
        memory: CachesMemory,
        device: torch.device,
        *,
        rope_switch: int | None = None,
        has_cache: bool = True,
    ) -> None:
        self.model = model
        self.memory = memory
        self.device = device
        self.layout: CacheLayout | None = None
        self.together: Together = "alone"
        self.chunked = False
        self.batched = False
        self.rope_switch = rope_switch
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), None)
        self.has_cache = has_cache and self._cache_name is not None
        self.mask_form: MaskForm = "rows"
        self._selection = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._positions = "position_ids" in parameters
        self._masks = "attention_mask" in parameters
        self._caches = "use_cache" in parameters

    def like(self, layout: CacheLayout, together: Together, form: MaskForm) -> CachedRunner:
        """Return a runner of the same model with these settings and a memory of its own."""
        runner = CachedRunner(
            self.model, CachesMemory(1), self.device, rope_switch=self.rope_switch, has_cache=self.has_cache
        )
        runner.layout, runner.together, runner.mask_form = layout, together, form
        return runner

    def forward(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        order: list[Sequence] = []
        logits: list[Tensor] = []
        for sequences in self._decoding_groups(plan.decodes):
            first = sequences[0]
            if first.computed - 1 == self.rope_switch:
                self.memory.groups.pop(first.number, None)
                computed_ids = send([first.tokens[: first.computed - 1]], torch.int64, self.device)
                ids = torch.cat([computed_ids, last[first.row].view(1, 1)], 1)
                group = self._group(first.number)
            else:
                numbers = [sequence.number for sequence in sequences]
                group = self._group(numbers[0]) if self.layout is None else self.memory.gather(self.layout, numbers)
                sampler_rows = {sequence.number: sequence.row for sequence in sequences}
                places = send([sampler_rows[number] for number in group.numbers], torch.int64, self.device)
                ids = last.index_select(0, places)[:, None]
            group_logits = self.forward_group(group, ids)
            by_number = {sequence.number: sequence for sequence in sequences}
            order += [by_number[number] for number in group.numbers]
            logits.append(group_logits)
        for chunks in _batches(plan.chunks) if self.batched else [[chunk] for chunk in plan.chunks]:
            group, group_logits = self.prompts(chunks)
            sampling = {chunk.sequence.number: chunk.sequence for chunk in chunks if chunk.samples}
            rows = [row for row, number in enumerate(group.numbers) if number in sampling]
            order += [sampling[group.numbers[row]] for row in rows]
            logits.append(group_logits if len(rows) == len(group_logits) else group_logits[rows])
        return order, torch.cat(logits) if logits else torch.empty(0, 1, device=self.device)

    def _decoding_groups(self, decodes: list[Sequence]) -> list[list[Sequence]]:
        """Return the sequences grouped by forward. A sequence that just passed the switch is computed alone."""
        groups: dict[Hashable, list[Sequence]] = {}
        for sequence in decodes:
            alone = self.together == "alone" or sequence.computed - 1 == self.rope_switch
            long = self.rope_switch is not None and sequence.computed > self.rope_switch
            key = sequence if alone else (long, sequence.computed if self.together == "equal" else 0)
            groups.setdefault(key, []).append(sequence)
        return list(groups.values())

    def prompts(self, chunks: list[Chunk]) -> tuple[CacheGroup, Tensor]:
        """Compute chunks of prompts in one forward. First chunks may differ in length, later ones must not. Return
        their sequences as a group, and the logits `[rows, vocabulary]` after each."""
        numbers = [chunk.sequence.number for chunk in chunks]
        longest = max(chunk.length for chunk in chunks)
        if len(chunks) == 1 and (self.layout is None or numbers[0] not in self.memory.groups):
            group = self._group(numbers[0])
        elif len(chunks) == 1 or chunks[0].start:
            assert self.layout is not None
            group = self.memory.gather(self.layout, numbers)
        else:  # a shorter prompt has padding before it: its length is negative until its own first token
            group = CacheGroup(numbers, [chunk.length - longest for chunk in chunks], 0, None)
            self.memory.put(group)
        padded = {
            chunk.sequence.number: [0] * (longest - chunk.length) + chunk.sequence.tokens[chunk.start : _end(chunk)]
            for chunk in chunks
        }
        ids = send([padded[number] for number in group.numbers], torch.int64, self.device)
        return group, self.forward_group(group, ids)

    def _group(self, number: int) -> CacheGroup:
        group = self.memory.groups.get(number)
        if group is None:
            group = CacheGroup([number], [0], 0, None)
            self.memory.put(group)
        return group

    def forward_group(self, group: CacheGroup, ids: Tensor) -> Tensor:
        """Compute a group's next tokens `[rows, tokens]`, add them to its cache, and return the logits after the last
        ones, `[rows, vocabulary]` float32."""
        count = ids.shape[1]
        if self.has_cache:
            # Models change caches in place, so the cache of a step that fails must not be used again.
            before, group.cache = group.cache, None
            named: dict[str, Any] = {str(self._cache_name): before}
            output = self._output(ids, group, count, use_cache=True, **named)
            cache = output.get(self._cache_name)
            if cache is None:
                raise UnservableModel("it does not return its cache, so sequences cannot be separated")
        else:
            # All tokens are computed again: the group is described to the model as if its cache were empty.
            cache = ids if group.cache is None else torch.cat([group.cache, ids], 1)
            lengths, width = group.lengths, group.width
            group.width, group.lengths = 0, [length - width for length in lengths]
            output = self._output(cache, group, width + count, **({"use_cache": False} if self._caches else {}))
            group.width, group.lengths = width, lengths
        group.cache = cache
        group.width += count
        group.lengths = [length + count for length in group.lengths]
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _output(self, ids: Tensor, group: CacheGroup, count: int, **named: Any) -> Any:
        """Return the model's output for the group's next `count` tokens."""
        if self._positions:  # not every model derives them from its cache
            starts = send(group.lengths, torch.int64, self.device)
            named["position_ids"] = (starts[:, None] + torch.arange(count, device=self.device)).clamp_min(0)
        if (mask := self._mask(group, count)) is not None:
            named["attention_mask"] = mask
        return self.model(input_ids=ids, **named, **self._selection)

    def _mask(self, group: CacheGroup, count: int) -> Tensor | None:
        """Return the mask that hides padding; None if there is no padding, or if it precedes the new tokens and the
        cache has no entries for it."""
        if not self._masks or self.layout is None or min(group.lengths) == group.width:
            return None
        if not self.layout.pads and min(group.lengths) >= 0:
            return None
        padding = send([group.width - length for length in group.lengths], torch.int64, self.device)
        visible = torch.arange(group.width + count, device=self.device) >= padding[:, None]
        if self.mask_form == "rows" or count > 1:
            return visible.long()
        dtype = self.model.dtype
        bias = torch.zeros(visible.shape, dtype=dtype, device=self.device).masked_fill_(
            ~visible, torch.finfo(dtype).min
        )
        return bias[:, None, None]


def _end(chunk: Chunk) -> int:
    return chunk.start + chunk.length


def _batches(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Group chunks into forwards with little padding: first chunks of similar length, and later chunks of equal length
    after a similar number of tokens."""
    kinds: dict[int, list[Chunk]] = {}
    for chunk in sorted(chunks, key=_end):
        kinds.setdefault(chunk.length if chunk.start else 0, []).append(chunk)
    batches: list[list[Chunk]] = []
    for kind in kinds.values():
        batch: list[Chunk] = []
        total = 0
        for chunk in kind:
            if batch and (len(batch) + 1) * _end(chunk) > (1 + PADDING) * (total + _end(chunk)):
                batches.append(batch)
                batch, total = [], 0
            batch.append(chunk)
            total += _end(chunk)
        batches.append(batch)
    return batches
