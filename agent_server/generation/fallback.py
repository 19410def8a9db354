"""The path for models whose attention does not fit packed batches: positional biases, sparse indexers, states of a kind
of their own, whatever comes next.

Caches are made and understood by the model alone. A prompt is computed by itself; sequences that decode are run
together on one cache with a row for each (`cache_trees.py`), padded on the left as `generate` pads prompts. Where the
model gives other logits with padding, only sequences of one length are run together, and where even that is wrong,
each is run by itself: which of these it is, is found out when the model is loaded (`fallback_check.py`). Scheduling,
sampling and control are the same as anywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from agent_server.generation.cache_trees import CacheLayout, assemble
from agent_server.generation.device import send
from agent_server.generation.leases import Terms
from agent_server.generation.sequence import Sequence
from agent_server.generation.snapshots import LEAST, Snapshots
from agent_server.generation.step_plan import Chunk, StepPlan

CACHE_NAMES = ("past_key_values", "cache_params", "state")
MaskForm = Literal["rows", "scores"]
"""Padding as transformers takes it: zeros and ones for each row's tokens, or what is added to each row's scores. Most
models make the second of the first; some make it wrong."""
Together = Literal["padded", "equal", "alone"]
"""Which sequences may share a forward: all, those of one length, none."""


class Unservable(Exception):
    """Why the model cannot even be run one sequence at a time, as half a sentence."""


@dataclass(eq=False, slots=True)
class CacheGroup:
    """A cache with a row for each of `numbers`, the sequences' own; they have `lengths` tokens in it, of which the
    longest had `width` when it was made: what is left of the shorter ones is padding."""

    numbers: list[int]
    lengths: list[int]
    width: int
    cache: Any


NO_LAYOUT = CacheLayout({}, {}, frozenset())


class CachesMemory:
    """The running sequences' caches. `total` tokens in all, of which every sequence takes so many as the longest has,
    where shorter ones are padded, and `state` more, whatever its length; a token takes `token_bytes`. What they leave
    holds snapshots, if there is a layout by which caches are copied."""

    def __init__(
        self,
        total: int,
        *,
        state: int = 0,
        padded: bool = True,
        layout: CacheLayout | None = None,
        token_bytes: int = 1,
    ) -> None:
        self.longest = total - state
        self.total = total
        self.groups: dict[int, CacheGroup] = {}
        self.snapshots = Snapshots(layout or NO_LAYOUT, state=state, token_bytes=token_bytes, room=total)
        self.leases = self.snapshots.leases
        self._state = state
        self._padded = padded
        self._layout = layout
        self._held: dict[int, int] = {}

    @property
    def usage(self) -> float:
        return self._taken(self._held) / self.total

    def _taken(self, held: dict[int, int]) -> int:
        stored = len(held) * max(held.values(), default=0) if self._padded else sum(held.values())
        return stored + len(held) * self._state

    def _left(self, sequence: Sequence, tokens: int) -> int:
        """Room beside the running sequences if this one has so many tokens; negative where there is too little."""
        return self.total - self._taken({**self._held, sequence.number: tokens})

    def _hold(self, sequence: Sequence, tokens: int) -> bool:
        """Room for so many tokens, for which snapshots go; False if there is none."""
        room = self._left(sequence, tokens)
        if room < 0:
            return False
        self._held[sequence.number] = tokens
        self.snapshots.shrink(room)
        return True

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        tokens = len(sequence.tokens) + 1
        if self._left(sequence, tokens) < 0:
            return None
        begins = self._layout is not None and sequence.shareable
        if begins:  # what it is to go on from was used last, so that others go for its room
            self.snapshots.find(sequence)
        self._hold(sequence, tokens)
        if sequence.place is not None and (lease := self.leases.take(sequence.place)) is not None:
            self.leases.kept += sequence.terms is None
            self.snapshots.let_go(lease.place)
        return self._begin(sequence) if begins else 0

    def _begin(self, sequence: Sequence) -> int:
        """Go on from a snapshot, if there is one; returns its tokens."""
        found = self.snapshots.find(sequence)
        cache = None if found is None else self.snapshots.restore(found)
        length = 0 if found is None or cache is None else found.depth
        if cache is not None:
            self.put(CacheGroup([sequence.number], [length], length, cache))
        sequence.stops = self.snapshots.stops(sequence, length)
        return length

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        return tokens <= self._held[sequence.number] or self._hold(sequence, tokens)

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        """A snapshot is taken there; one that was to be taken a few tokens later is taken there instead."""
        if self._layout is None or length <= leader.computed:
            return False
        if any(max(leader.computed, length - LEAST) < stop <= length for stop in leader.stops):
            return True
        if length - leader.computed < least:
            return False
        others = (stop for stop in leader.stops if not length < stop < length + LEAST)
        leader.stops = tuple(sorted({*others, length}))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Keep what the sequence has now, if its prompt may be gone on from there."""
        if sequence.computed in sequence.stops:
            self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Keep what the sequence has now, unless its last step failed or is still on its way."""
        length, group = min(sequence.computed, sequence.known), self.groups.get(sequence.number)
        if self._layout is None or group is None or group.cache is None or not sequence.shareable or length < LEAST:
            return
        row = group.numbers.index(sequence.number)
        if group.lengths[row] != length or self.snapshots.has(sequence, length):
            return
        cache = assemble(self._layout, [(group.cache, [row], group.width)], length)
        self.snapshots.keep(sequence, length, cache, self.total - self._taken(self._held))

    def release(self, sequence: Sequence, terms: Terms | None = None) -> None:
        if sequence.number in self._held:
            self._held.pop(sequence.number)
            self._keep(sequence)
            if terms is not None:
                self.snapshots.lease(sequence, min(sequence.computed, sequence.known), terms)
        sequence.stops = ()
        self.groups.pop(sequence.number, None)

    # caches

    def put(self, group: CacheGroup) -> None:
        self.groups.update(dict.fromkeys(group.numbers, group))

    def gathered(self, layout: CacheLayout, numbers: list[int]) -> CacheGroup:
        """The sequences as one group, in an order of its own; others that were in a group with one of them are put
        apart."""
        groups = list(dict.fromkeys(self.groups[number] for number in numbers))
        wanted = set(numbers)
        if len(groups) == 1 and set(groups[0].numbers) == wanted:
            return groups[0]
        left = [
            _combined(layout, [group], {n for n in group.numbers if self.groups.get(n) is group} - wanted)
            for group in groups
        ]
        made = _combined(layout, groups, wanted)
        for group in (*left, made):
            if group is not None:
                self.put(group)
        assert made is not None
        return made


def _combined(layout: CacheLayout, groups: list[CacheGroup], wanted: set[int]) -> CacheGroup | None:
    """A group of those that are wanted, no wider than the longest."""
    rows = [[row for row, number in enumerate(group.numbers) if number in wanted] for group in groups]
    numbers = [group.numbers[row] for group, some in zip(groups, rows, strict=True) for row in some]
    lengths = [group.lengths[row] for group, some in zip(groups, rows, strict=True) for row in some]
    if not numbers:
        return None
    parts = [(group.cache, some, group.width) for group, some in zip(groups, rows, strict=True) if some]
    return CacheGroup(numbers, lengths, max(lengths), assemble(layout, parts, max(lengths)))


class CachedRunner:
    """Runs prompts one after the other, and sequences that decode `together`. layout: None where nobody shares a cache.
    chunked: prompts may be cut. turn: length beyond which the model's positions are others from the first token on; a
    sequence that grows past it is computed anew, since what its cache holds was computed with the former, and shares no
    forward with shorter ones. keeps: the model hands out what it has computed; where it does not, what stands for a
    cache is the tokens, and all of them are computed again in every step."""

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
        made = CachedRunner(self.model, CachesMemory(1), self.device, turn=self.turn, keeps=self.keeps)
        made.layout, made.together, made.mask_form = layout, together, form
        return made

    def run(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        order: list[Sequence] = []
        logits: list[Tensor] = []
        for sequences in self._sorted(plan.decodes):
            group, found = self._decode(sequences, last)
            by_number = {sequence.number: sequence for sequence in sequences}
            order += [by_number[number] for number in group.numbers]
            logits.append(found)
        for chunk in plan.chunks:
            found = self._chunk(chunk)
            if chunk.samples:
                logits.append(found)
        order += [chunk.sequence for chunk in plan.chunks if chunk.samples]
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
            known = send([first.tokens[: first.computed - 1]], torch.int64, self.device)
            ids = torch.cat([known, last[first.row].view(1, 1)], 1)
            group = self._group(first.number)
        else:
            group = self._gathered(sequences)
            rows = {sequence.number: sequence.row for sequence in sequences}
            order = send([rows[number] for number in group.numbers], torch.int64, self.device)
            ids = last.index_select(0, order)[:, None]
        return group, self.forward(group, ids)

    def _gathered(self, sequences: list[Sequence]) -> CacheGroup:
        numbers = [sequence.number for sequence in sequences]
        return self._group(numbers[0]) if self.layout is None else self.memory.gathered(self.layout, numbers)

    # prompts

    def _chunk(self, chunk: Chunk) -> Tensor:
        """The logits `[1, vocabulary]` behind the chunk."""
        tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]
        return self.forward(self._apart(chunk.sequence.number), send([tokens], torch.int64, self.device))

    def _apart(self, number: int) -> CacheGroup:
        """The sequence's cache, by itself."""
        if self.layout is not None and number in self.memory.groups:
            return self.memory.gathered(self.layout, [number])
        return self._group(number)

    def _group(self, number: int) -> CacheGroup:
        found = self.memory.groups.get(number)
        if found is None:
            found = CacheGroup([number], [0], 0, None)
            self.memory.put(found)
        return found

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
        """What hides padding; None where there is none, or where nothing is kept for each token."""
        if not self._masks or self.layout is None or not self.layout.pads or min(group.lengths) == group.width:
            return None
        padding = send([group.width - length for length in group.lengths], torch.int64, self.device)
        seen = torch.arange(group.width + count, device=self.device) >= padding[:, None]
        if self.mask_form == "rows" or count > 1:
            return seen.long()
        dtype = self.model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype, device=self.device).masked_fill_(~seen, torch.finfo(dtype).min)
        return hidden[:, None, None]
