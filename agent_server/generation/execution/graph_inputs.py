"""What changes from one replay of a captured step to the next: one tensor of whole numbers, sent in one copy.

A captured step has places for sequences that decode, then slots for chunks of prompts. Those without a sequence are
padded: a place with one token of a row that belongs to nobody, a slot with none. Tokens behind the last chunk belong to
no sequence; what is computed for them is never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from agent_server.generation.attention.paged_batch import Paging
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a captured step. decodes: places for sequences with one token each. slots: for chunks, which have
    `tokens` tokens together. pages: the most of a sequence."""

    decodes: int
    slots: int
    tokens: int
    pages: int

    @property
    def sequences(self) -> int:
        return self.decodes + self.slots

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the parts of the tensor, in the order of `Inputs`."""
        some = self.sequences
        return some, some, some + 1, self.decodes + self.tokens, self.tokens, self.tokens, some


@dataclass(frozen=True, slots=True)
class Inputs:
    """Parts of one int64 tensor. rows, lengths: of each sequence, `[sequences]`; the new tokens count. starts:
    `[sequences + 1]`, where each one's tokens begin. positions: of all tokens. ids, places: of the chunks' tokens, and
    where their keys go. wanted: the tokens with whose logits the step's sequences go on, in their order."""

    rows: Tensor
    lengths: Tensor
    starts: Tensor
    positions: Tensor
    ids: Tensor
    places: Tensor
    wanted: Tensor


def split(tensor: Tensor, layout: Layout) -> Inputs:
    """Views of its parts."""
    return Inputs(*tensor.split_with_sizes(layout.sizes))


def fill(layout: Layout, plan: StepPlan, memory: PagedMemory, nobody: int) -> list[int]:
    """The numbers of a step that the layout has room for. nobody: the row of the places that pad it."""
    decodes, chunks = plan.decodes, plan.chunks
    idle, unused = layout.decodes - len(decodes), layout.slots - len(chunks)
    rows = [s.row for s in decodes] + [nobody] * idle + [chunk.sequence.row for chunk in chunks]
    lengths = [s.computed for s in decodes] + [1] * idle + [chunk.start + chunk.length for chunk in chunks]
    ends = list(accumulate((chunk.length for chunk in chunks), initial=layout.decodes))
    starts = list(range(layout.decodes)) + ends + ends[-1:] * unused
    rest = layout.decodes + layout.tokens - ends[-1]
    positions = [s.computed - 1 + s.shift for s in decodes] + [0] * idle
    ids: list[int] = []
    for chunk in chunks:
        ids += chunk.tokens()
        first = chunk.start + chunk.sequence.shift
        positions.extend(range(first, first + chunk.length))
    wanted = [*range(len(decodes)), *(end - 1 for end, chunk in zip(ends[1:], chunks, strict=True) if chunk.samples)]
    parts = (
        rows + [nobody] * unused,
        lengths + [1] * unused,
        starts,
        positions + [0] * rest,
        ids + [0] * rest,
        [*_places(plan, memory), *[0] * rest],
        wanted + [0] * (layout.sequences - len(wanted)),
    )
    return [number for part in parts for number in part]


def _places(plan: StepPlan, memory: PagedMemory) -> Iterator[int]:
    size = memory.page_size
    for chunk in plan.chunks:
        pages = memory.table(chunk.sequence)
        for position in range(chunk.start, chunk.start + chunk.length):
            yield pages[position // size] * size + position % size


def paging(inputs: Inputs, layout: Layout, tables: Tensor, page_size: int) -> Paging:
    """A captured step's Paging, worked out on the device from its inputs and every row's pages `tables` `[rows,
    pages]`. For a kernel: there are no spans."""
    own = tables[:, : layout.pages].index_select(0, inputs.rows)
    positions = inputs.lengths[: layout.decodes] - 1
    pages = own[: layout.decodes].gather(1, (positions // page_size)[:, None])[:, 0].to(torch.int64)
    places = pages * page_size + positions % page_size
    return Paging(
        tables=own,
        lengths=inputs.lengths.to(torch.int32),
        starts=inputs.starts.to(torch.int32),
        key_starts=torch.nn.functional.pad(inputs.lengths.cumsum(0), (1, 0)).to(torch.int32),
        places=torch.cat([places, inputs.places]) if layout.tokens else places,
        spans=[],
        counts=[],
        single=layout.decodes,
        most_queries=max(1, layout.tokens),
        most_keys=layout.pages * page_size,
    )
