"""Steps as CUDA graphs: launched as a whole, so that a step costs the host one call instead of thousands.

Graphs are captured when the model is loaded: for steps that only decode, one for each of a few batch sizes (the
buckets), and for steps with chunks of prompts, for fewer batch sizes and one number of tokens. A smaller step is
padded. What changes from step to step is in static tensors: one small tensor of numbers (`Inputs`), and a table of
every row's pages that is updated only when a row gets a page. Everything else (where keys are written, block tables,
the newest tokens) is computed by the graph on the device.

The capturing itself is a parameter, so that the bookkeeping can run without a GPU.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, Protocol

import torch
from torch import Tensor

from agent_server.generation.attention.batches import PagedBatch, Paging
from agent_server.generation.device import send
from agent_server.generation.faults import first_line
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import MAX_CHUNKS, StepPlan


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a captured step. decodes: places for sequences with one token each. slots: places for chunks, which
    have `tokens` tokens in total. pages: the maximum of a sequence."""

    decodes: int
    slots: int
    tokens: int
    pages: int

    @property
    def sequences(self) -> int:
        return self.decodes + self.slots

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the parts of the input tensor, in the order of `Inputs`."""
        some = self.sequences
        return some, some, some + 1, self.decodes + self.tokens, self.tokens, self.tokens, some


@dataclass(frozen=True, slots=True)
class Inputs:
    """The parts of one int64 tensor. rows, lengths: of each sequence, `[sequences]`, with the new tokens counted.
    starts: where each sequence's tokens begin, `[sequences + 1]`. positions: of all tokens. ids, places: of the chunks'
    tokens, and where their keys are written. selected: the token whose logits each sequence is sampled from."""

    rows: Tensor
    lengths: Tensor
    starts: Tensor
    positions: Tensor
    ids: Tensor
    places: Tensor
    selected: Tensor


def split(tensor: Tensor, layout: Layout) -> Inputs:
    """Return views of the tensor's parts."""
    return Inputs(*tensor.split_with_sizes(layout.sizes))


def fill(layout: Layout, plan: StepPlan, memory: PagedMemory, padding_row: int) -> list[int]:
    """Return a step's inputs as numbers in the layout's order. padding_row: the row that padding belongs to."""
    decodes, chunks = plan.decodes, plan.chunks
    idle, unused = layout.decodes - len(decodes), layout.slots - len(chunks)
    rows = [s.row for s in decodes] + [padding_row] * idle + [chunk.sequence.row for chunk in chunks]
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
    selected = [*range(len(decodes)), *(end - 1 for end, chunk in zip(ends[1:], chunks, strict=True) if chunk.samples)]
    slots: list[int] = []
    size = memory.page_size
    for chunk in chunks:
        pages = memory.table(chunk.sequence)
        indices = range(chunk.start, chunk.start + chunk.length)
        slots.extend(pages[index // size] * size + index % size for index in indices)
    parts = (
        rows + [padding_row] * unused,
        lengths + [1] * unused,
        starts,
        positions + [0] * rest,
        ids + [0] * rest,
        slots + [0] * rest,
        selected + [0] * (layout.sequences - len(selected)),
    )
    return [number for part in parts for number in part]


def paging(inputs: Inputs, layout: Layout, tables: Tensor, page_size: int) -> Paging:
    """Compute a captured step's Paging on the device, from its inputs and every row's pages `tables` `[rows, pages]`.
    It has no spans, since only kernels use it."""
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
"""ids `[tokens]`, positions `[tokens]`, the selected tokens (None: all) and the batch → logits `[selected, vocabulary]`
in the model's precision."""
Report = Callable[[float], None]
STEP = 8
"""Buckets are 1, 2, 4 and multiples of this."""
MIXED_STEP = 4
"""Buckets of steps with chunks are powers of this, since padding matters less compared to the tokens of a chunk."""
CHUNK_TOKENS = (1024, 512, 256, 128, 64)
"""Numbers of chunk tokens that are tried for a captured step. The last is captured in any case, for short prompts."""
STALL = 1.2
"""Factor by which chunks may lengthen a step for decoding sequences."""
STALL_SECONDS = 0.01
"""Duration up to which chunks may lengthen a step, whatever it takes without: 100 tokens a second for each sequence. A
tighter bound made 64 prompts of 512 tokens wait for 500 steps (0.6B on an H200)."""
REPLAYS = 10
SHORTEST_REACH = 4096
REACH_STEP = 8


def buckets(most: int) -> list[int]:
    """Return the batch sizes to capture for steps that only decode; the last is `most`."""
    sizes = {size for size in (1, 2, 4, *range(STEP, most, STEP)) if size < most}
    return sorted(sizes | {most})


def mixed_buckets(most: int) -> list[int]:
    """Return the batch sizes to capture for steps with chunks; the last is `most`."""
    sizes = [1]
    while sizes[-1] * MIXED_STEP < most:
        sizes.append(sizes[-1] * MIXED_STEP)
    return sorted({*sizes, most})


def reaches(longest: int) -> list[int]:
    """Return the maximum lengths, in tokens, for which a batch is captured. How attention is split over the device
    depends on the maximum number of keys, and short sequences should not pay for the longest."""
    lengths, reach = [], SHORTEST_REACH
    while 2 * reach <= longest:
        lengths.append(reach)
        reach *= REACH_STEP
    return [*lengths, longest]


def graph_count(rows: int, longest: int) -> int:
    """Return the maximum number of graphs: steps with chunks are captured for two numbers of tokens."""
    return (len(buckets(rows)) + 2 * len(mixed_buckets(rows))) * len(reaches(longest))


class Capture(Protocol):
    """Captures functions over static tensors and times their replays."""

    def __call__(self, function: Callable[[], Tensor]) -> Callable[[], object]:
        """Capture a function and return what replays it on the same tensors."""

    def seconds(self, replay: Callable[[], object]) -> float:
        """Return how long a replay takes."""


class CudaCapture:
    """Captures on one stream, since cuBLAS keeps a workspace for every stream it has been used on, and into one memory
    pool, which all graphs may share since they are never replayed concurrently."""

    def __init__(self) -> None:
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> Callable[[], object]:
        """Warm up on a side stream, as torch requires, then capture. A failed capture leaves the current stream as it
        was, and later captures get a new stream and pool."""
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
            # Where ending an invalid capture raises, torch leaves its own stream current, its allocator in the capture
            # (so that no memory is given back any more), and its generator too (so that it gives no random numbers).
            torch.cuda.set_stream(current)
            with suppress(RuntimeError):  # it is not in the capture
                torch._C._cuda_endAllocateToPool(current.device_index, self._pool)
            generator = torch.cuda.default_generators[current.device_index]
            fresh = torch.Generator(current.device).manual_seed(generator.initial_seed())
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
            self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
            raise
        return graph.replay

    def seconds(self, replay: Callable[[], object]) -> float:
        replay()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / REPLAYS


@dataclass(slots=True)
class _Captured:
    """A captured graph. inputs: int64, in the order of `Inputs`."""

    inputs: Tensor
    replay: Callable[[], object]


class StepGraphs:
    """Graphs over one PagedMemory and the tensors that the batches of `forward` use.

    last: each row's newest token, always the same tensor. width: the maximum number of pages of a sequence. One more
    row belongs to no sequence: padding uses it, and its only page is page 0, which belongs to no sequence either.
    chunk_tokens: the maximum chunk tokens of a captured step, 0 if no step with chunks is captured.
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
        self._chunk_sizes: list[int] = []
        self._table_rows: list[tuple[list[int] | None, int]] = [(None, 0)] * rows
        self._logits = last.new_empty(0)

    @torch.inference_mode()
    def warm(self, report: Report, slow: list[str], *, chunk_tokens: int, step_tokens: int) -> bool:
        """Capture every bucket, the largest first, so that the others fit into its memory. Return False if capturing
        fails; steps with chunks may fail alone. slow: gets the reason of either failure. chunk_tokens: prompt
        tokens in a step with decoding sequences; 0 for as many of `step_tokens` as lengthen the step by no more than
        STALL."""
        count = graph_count(len(self._last), self._widths[-1] * self._memory.page_size)

        def report_progress() -> None:
            report(min(1.0, len(self._captured) / count))

        try:
            # The output of all graphs, in float32 and as wide as the model's logits.
            layout = Layout(1, 0, 0, self._widths[0])
            width = self._compute(self._empty(layout), layout).shape[-1]
            self._logits = torch.empty(
                len(self._last) + MAX_CHUNKS, width, dtype=torch.float32, device=self._last.device
            )
            self._capture_all((Layout(size, 0, 0, 0) for size in reversed(self.sizes)), report_progress)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            slow.append(f"Decoding cannot be captured in CUDA graphs and is slower: {first_line(error)}.")
            self._captured.clear()
            self._logits = self._last.new_empty(0)
            return False
        try:
            self.chunk_tokens = min(chunk_tokens, step_tokens) or self._measure_chunk_tokens(step_tokens)
            self._chunk_sizes = sorted({min(self.chunk_tokens, CHUNK_TOKENS[-1]), self.chunk_tokens})
            mixed = product(reversed(self.mixed_sizes), reversed(self._chunk_sizes))
            self._capture_all((Layout(size, MAX_CHUNKS, tokens, 0) for size, tokens in mixed), report_progress)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            slow.append(f"Steps with prompts cannot be captured in CUDA graphs and are slower: {first_line(error)}.")
            self._captured = {layout: graph for layout, graph in self._captured.items() if not layout.tokens}
            self.chunk_tokens = 0
        return True

    def _capture_all(self, layouts: Iterable[Layout], report_progress: Callable[[], None]) -> None:
        for layout, pages in product(layouts, reversed(self._widths)):
            self._add(Layout(layout.decodes, layout.slots, layout.tokens, pages))
            report_progress()

    def _add(self, layout: Layout) -> _Captured:
        if layout not in self._captured:
            inputs = self._empty(layout)
            target = self._logits[: layout.sequences]
            replay = self._capture(lambda: target.copy_(self._compute(inputs, layout)))
            self._captured[layout] = _Captured(inputs, replay)
        return self._captured[layout]

    def _empty(self, layout: Layout) -> Tensor:
        """Return the inputs of a step without sequences."""
        numbers = fill(layout, StepPlan(), self._memory, len(self._last))
        return torch.tensor(numbers, dtype=torch.int64, device=self._last.device)

    def _compute(self, numbers: Tensor, layout: Layout) -> Tensor:
        """Run the step that is captured, without synchronisation with the host."""
        inputs = split(numbers, layout)
        newest = self._last.index_select(0, inputs.rows[: layout.decodes].clamp_max(len(self._last) - 1))
        ids = torch.cat([newest, inputs.ids]) if layout.tokens else newest
        batch = self._make_batch(paging(inputs, layout, self.tables, self._memory.page_size))
        return self._forward(ids, inputs.positions, inputs.selected if layout.tokens else None, batch)

    def _measure_chunk_tokens(self, most: int) -> int:
        """Return how many chunk tokens lengthen the step of one decoding sequence by no more than STALL, since that
        step is bound by reading the weights, or to no more than STALL_SECONDS."""
        sizes = [tokens for tokens in CHUNK_TOKENS if tokens <= most] or [most]
        alone = self._capture.seconds(self._add(Layout(1, 0, 0, self._widths[0])).replay)
        for tokens in sizes:
            layout = Layout(1, MAX_CHUNKS, tokens, self._widths[0])
            with_chunks = self._capture.seconds(self._add(layout).replay)
            if with_chunks <= max(STALL * alone, STALL_SECONDS) or tokens == sizes[-1]:
                break
            del self._captured[layout]
        logger.info(
            "A step of one sequence takes %.2f ms, with %d prompt tokens %.2f ms.",
            alone * 1e3,
            tokens,
            with_chunks * 1e3,
        )
        return tokens

    def replay(self, plan: StepPlan) -> Tensor | None:
        """Replay a plan. Return the logits of its sequences that get a token, in their order, valid until the next run;
        None if no graph fits the plan. Chunks must be plain text that is neither drafted nor scored."""
        device, sequences = self._last.device, [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]
        most_pages = max(len(self._memory.table(sequence)) for sequence in sequences)
        sizes = self.mixed_sizes if plan.chunks else self.sizes
        size, width = bisect_left(sizes, len(plan.decodes)), bisect_left(self._widths, most_pages)
        if size == len(sizes) or width == len(self._widths) or len(plan.chunks) > MAX_CHUNKS:
            return None
        mixed = (0, 0)
        if plan.chunks:
            at = bisect_left(self._chunk_sizes, sum(chunk.length for chunk in plan.chunks))
            if at == len(self._chunk_sizes):
                return None
            mixed = MAX_CHUNKS, self._chunk_sizes[at]
        layout = Layout(sizes[size], *mixed, self._widths[width])
        captured = self._captured.get(layout)
        if captured is None:
            return None
        for sequence in sequences:
            # Copy the sequence's pages to its row of the table, unless the row has them already.
            pages, row = self._memory.table(sequence), sequence.row
            row_pages, count = self._table_rows[row]
            if row_pages is not pages or count != len(pages):
                first = count if row_pages is pages else 0
                more = send(pages[first:], torch.int32, device)
                self.tables[row, first : len(pages)].copy_(more, non_blocking=True)
                self._table_rows[row] = pages, len(pages)
        numbers = fill(layout, plan, self._memory, len(self._last))
        captured.inputs.copy_(send(numbers, torch.int64, device), non_blocking=True)
        captured.replay()
        return self._logits[: len(plan.sampled)]
