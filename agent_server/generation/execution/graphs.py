"""Steps as CUDA graphs: launched whole, so that a step costs the host one call instead of thousands.

Graphs are captured when the model is loaded: of steps that only decode, one for each of a few batch sizes, the buckets,
and of steps with chunks of prompts, for fewer batch sizes and one number of tokens. A smaller step is padded. What
changes from step to step lies in static tensors: one small tensor of numbers (`Inputs`), and the pages of
every row in a table that is touched only when a row gets a page. Everything else (where keys go, block tables, the
newest tokens) the graph works out itself on the device.

What captures is handed in, so that the bookkeeping can be run without a GPU.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, product
from typing import Any, Protocol

import torch
from torch import Tensor

from agent_server.generation.attention.batches import PagedBatch, Paging
from agent_server.generation.device import send
from agent_server.generation.faults import first_line
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import MOST_CHUNKS, Sequence, StepPlan


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
    """Return a step's numbers in the layout's order. nobody: the row that padding belongs to."""
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


logger = logging.getLogger("agent_server.generation")
Forward = Callable[[Tensor, Tensor, Tensor | None, PagedBatch], Tensor]
"""ids `[tokens]`, positions `[tokens]`, the tokens whose logits are wanted (None: all) and the batch → logits `[wanted,
vocabulary]` in the model's precision."""
Report = Callable[[float], None]
STEP = 8
"""Buckets are 1, 2, 4, and then multiples of it."""
MIXED_STEP = 4
"""Those of steps with chunks are its powers: a chunk's tokens outweigh what pads the others."""
CHUNK_TOKENS = (512, 256, 128, 64)
"""How many tokens of chunks are tried for a captured step."""
STALL = 1.2
"""By how much chunks may make a step longer for those that decode."""
REPLAYS = 10
SHORTEST_REACH = 4096
REACH_STEP = 8


def buckets(most: int) -> list[int]:
    """Batch sizes to capture: the last is `most`."""
    sizes = {size for size in (1, 2, 4, *range(STEP, most, STEP)) if size < most}
    return sorted(sizes | {most})


def mixed_buckets(most: int) -> list[int]:
    """The same for steps with chunks."""
    sizes = [1]
    while sizes[-1] * MIXED_STEP < most:
        sizes.append(sizes[-1] * MIXED_STEP)
    return sorted({*sizes, most})


def reaches(longest: int) -> list[int]:
    """Numbers of keys, in tokens, for which a batch is captured: how attention is split over the device follows from
    the most keys that a sequence may have, and short ones should not pay for the longest."""
    found, reach = [], SHORTEST_REACH
    while 2 * reach <= longest:
        found.append(reach)
        reach *= REACH_STEP
    return [*found, longest]


def graph_count(rows: int, longest: int) -> int:
    return (len(buckets(rows)) + len(mixed_buckets(rows))) * len(reaches(longest))


class Capture(Protocol):
    """How a function over static tensors is captured, and how long it takes."""

    def __call__(self, function: Callable[[], Tensor]) -> Callable[[], object]:
        """What runs it again, on the same tensors."""

    def seconds(self, replay: Callable[[], object]) -> float:
        """That what was captured takes."""


class CudaCapture:
    """Captures on one stream, since cuBLAS keeps a workspace for every stream that it has seen, and into one pool of
    memory, which every graph may use since no two are ever replayed side by side."""

    def __init__(self) -> None:
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> Callable[[], object]:
        """Warmed up beside the current stream, as torch asks for, then captured. A failed capture leaves the current
        stream as it was, and later ones get a stream and a pool of their own."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                for _ in range(2):
                    function()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                function()
        except Exception:
            # Where ending an invalid capture raises, torch.cuda.graph does not reset the current stream, and the
            # allocator may still route this stream's memory to the pool.
            torch.cuda.set_stream(current)
            self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
            raise
        return graph.replay

    def seconds(self, replay: Callable[[], object]) -> float:
        replay()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / REPLAYS


@dataclass(slots=True)
class _Captured:
    """inputs: int64, as `graph_inputs` lays them out."""

    inputs: Tensor
    replay: Callable[[], object]


class StepGraphs:
    """Graphs over one PagedMemory and the tensors that the batches of `forward` use.

    last: each row's newest token, the same tensor for good. width: the most pages that a sequence can have. The row
    behind the last belongs to no sequence: places that pad a step belong to it, its only page is page 0, which belongs
    to none either. chunk_tokens: the most tokens of chunks in a captured step, 0 if none with chunks is.
    """

    def __init__(
        self,
        forward: Forward,
        memory: PagedMemory,
        make_batch: Callable[[Paging], PagedBatch],
        *,
        last: Tensor,
        width: int,
        capture: Capture,
    ) -> None:
        rows = len(last)
        self.sizes, self.mixed_sizes = buckets(rows), mixed_buckets(rows)
        self.chunk_tokens = 0
        self.tables = torch.zeros(rows + 1, width, dtype=torch.int32, device=last.device)
        self._forward = forward
        self._memory = memory
        self._make_batch = make_batch
        self._last = last
        self._capture = capture
        self._widths = [-(-reach // memory.page_size) for reach in reaches(width * memory.page_size)]
        self._captured: dict[Layout, _Captured] = {}
        self._held: list[tuple[list[int] | None, int]] = [(None, 0)] * rows
        self._logits = last.new_empty(0)

    @torch.inference_mode()
    def warm(self, report: Report, *, chunk_tokens: int, step_tokens: int) -> bool:
        """Capture every bucket, the largest first, so that the others fit into its memory. chunk_tokens: of a step
        beside those that decode; 0 takes as many of the `step_tokens` as hold them up by no more than STALL. False, and
        why in the log, where capturing does not work; steps with chunks may fail by themselves."""
        count = graph_count(len(self._last), self._widths[-1] * self._memory.page_size)
        said = partial(self._say, report, count)
        try:
            # What all graphs write to, in float32; as wide as the model's logits turn out to be.
            layout = Layout(1, 0, 0, self._widths[0])
            width = self._compute(self._empty(layout), layout).shape[-1]
            self._logits = torch.empty(
                len(self._last) + MOST_CHUNKS, width, dtype=torch.float32, device=self._last.device
            )
            self._capture_all((Layout(size, 0, 0, 0) for size in reversed(self.sizes)), said)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            logger.warning("Decoding is not captured in CUDA graphs, and so slower: %s", first_line(error))
            self._captured.clear()
            self._logits = self._last.new_empty(0)
            return False
        try:
            self.chunk_tokens = min(chunk_tokens, step_tokens) or self._measured(step_tokens)
            mixed = (Layout(size, MOST_CHUNKS, self.chunk_tokens, 0) for size in reversed(self.mixed_sizes))
            self._capture_all(mixed, said)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            logger.warning("Steps with prompts are not captured in CUDA graphs, and so slower: %s", first_line(error))
            self._captured = {layout: graph for layout, graph in self._captured.items() if not layout.tokens}
            self.chunk_tokens = 0
        return True

    def _say(self, report: Report, count: int) -> None:
        report(min(1.0, len(self._captured) / count))

    def _capture_all(self, layouts: Iterable[Layout], said: Callable[[], None]) -> None:
        for layout, pages in product(layouts, reversed(self._widths)):
            self._add(Layout(layout.decodes, layout.slots, layout.tokens, pages))
            said()

    def _add(self, layout: Layout) -> _Captured:
        if layout not in self._captured:
            inputs = self._empty(layout)
            target = self._logits[: layout.sequences]
            replay = self._capture(lambda: target.copy_(self._compute(inputs, layout)))
            self._captured[layout] = _Captured(inputs, replay)
        return self._captured[layout]

    def _empty(self, layout: Layout) -> Tensor:
        """The inputs of a step without sequences."""
        numbers = fill(layout, StepPlan(), self._memory, len(self._last))
        return torch.tensor(numbers, dtype=torch.int64, device=self._last.device)

    def _compute(self, given: Tensor, layout: Layout) -> Tensor:
        """What is captured: nothing in it asks the host."""
        inputs = split(given, layout)
        newest = self._last.index_select(0, inputs.rows[: layout.decodes].clamp_max(len(self._last) - 1))
        ids = torch.cat([newest, inputs.ids]) if layout.tokens else newest
        batch = self._make_batch(paging(inputs, layout, self.tables, self._memory.page_size))
        return self._forward(ids, inputs.positions, inputs.wanted if layout.tokens else None, batch)

    def _measured(self, most: int) -> int:
        """The most tokens of chunks beside one that decodes, where a step is bound by reading weights."""
        tried = [tokens for tokens in CHUNK_TOKENS if tokens <= most] or [most]
        alone = self._capture.seconds(self._add(Layout(1, 0, 0, self._widths[0])).replay)
        for tokens in tried:
            layout = Layout(1, MOST_CHUNKS, tokens, self._widths[0])
            beside = self._capture.seconds(self._add(layout).replay)
            if beside <= STALL * alone or tokens == tried[-1]:
                break
            del self._captured[layout]
        logger.info(
            "A step of one sequence takes %.2f ms, with %d tokens of prompts %.2f ms.",
            alone * 1e3,
            tokens,
            beside * 1e3,
        )
        return tokens

    def run(self, plan: StepPlan) -> Tensor | None:
        """The logits of the plan's sequences that get a token, in their order; they stand until the next run. None
        where no graph holds the plan. Chunks are of plain tokens that are neither guessed nor scored."""
        layout = self._layout(plan)
        captured = None if layout is None else self._captured.get(layout)
        if layout is None or captured is None:
            return None
        for sequence in (*plan.decodes, *(chunk.sequence for chunk in plan.chunks)):
            self._hold(sequence)
        numbers = fill(layout, plan, self._memory, len(self._last))
        captured.inputs.copy_(send(numbers, torch.int64, self._last.device), non_blocking=True)
        captured.replay()
        return self._logits[: len(plan.sampled)]

    def _layout(self, plan: StepPlan) -> Layout | None:
        sequences = [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]
        pages = max(len(self._memory.table(sequence)) for sequence in sequences)
        sizes = self.mixed_sizes if plan.chunks else self.sizes
        at, reach = bisect_left(sizes, len(plan.decodes)), bisect_left(self._widths, pages)
        tokens = sum(chunk.length for chunk in plan.chunks)
        if (
            at == len(sizes)
            or reach == len(self._widths)
            or tokens > self.chunk_tokens
            or len(plan.chunks) > MOST_CHUNKS
        ):
            return None
        mixed = (MOST_CHUNKS, self.chunk_tokens) if plan.chunks else (0, 0)
        return Layout(sizes[at], *mixed, self._widths[reach])

    def _hold(self, sequence: Sequence) -> None:
        """The row's pages into the table, if they are others or more than those in it."""
        pages = self._memory.table(sequence)
        held, count = self._held[sequence.row]
        if held is pages and count == len(pages):
            return
        first = count if held is pages else 0
        self.tables[sequence.row, first : len(pages)].copy_(
            send(pages[first:], torch.int32, self._last.device), non_blocking=True
        )
        self._held[sequence.row] = pages, len(pages)
