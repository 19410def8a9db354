"""Decoding steps as CUDA graphs: launched whole, so that a step costs the host one call instead of thousands.

A graph is captured for each of a few batch sizes, the buckets, when the model is loaded, and replayed for every step
that only decodes; a smaller batch is padded. What changes from step to step lies in static tensors: each place's row
and length in one small tensor, and the pages of every row in a table that is touched only when a row gets a page.
Everything else (positions, where keys go, block tables, the newest tokens) the graph works out itself on the device.

What captures is handed in, so that the bookkeeping can be run without a GPU.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import send
from agent_server.generation.faults import first_line
from agent_server.generation.paged_batch import PagedBatch, decoding
from agent_server.generation.pages import PagedMemory
from agent_server.generation.sequence import Sequence

logger = logging.getLogger("agent_server.generation")
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""A function over static tensors → what runs it again, and its output, which a replay overwrites."""
Forward = Callable[[Tensor, Tensor, PagedBatch], Tensor]
"""ids `[places]`, positions `[places]` and the batch → logits `[places, vocabulary]`."""
STEP = 8
"""Buckets are 1, 2, 4, and then multiples of it."""
SHORTEST_REACH = 4096
REACH_STEP = 8


def buckets(most: int) -> list[int]:
    """Batch sizes to capture: the last is `most`."""
    sizes = {size for size in (1, 2, 4, *range(STEP, most, STEP)) if size < most}
    return sorted(sizes | {most})


def reaches(longest: int) -> list[int]:
    """Numbers of keys, in tokens, for which a batch is captured: how attention is split over the device follows from
    the most keys that a sequence may have, and short ones should not pay for the longest."""
    found, reach = [], SHORTEST_REACH
    while 2 * reach <= longest:
        found.append(reach)
        reach *= REACH_STEP
    return [*found, longest]


def cuda_capture() -> Capture:
    """Captures on one stream, since cuBLAS keeps a workspace for every stream that it has seen, and into one pool of
    memory, which every graph may use since no two are ever replayed side by side."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return partial(_capture_cuda, pool=torch.cuda.graph_pool_handle(), side=stream)


def _capture_cuda(function: Callable[[], Tensor], *, pool: Any, side: Any) -> tuple[Callable[[], None], Tensor]:
    """Warmed up beside the current stream, as torch asks for, then captured."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
        output = function()
    return graph.replay, output


@dataclass(slots=True)
class _Captured:
    """inputs: `[3, places]` int64, each place's row, length and position. logits: `[places, vocabulary]`, the beginning
    of what all graphs write to."""

    inputs: Tensor
    replay: Callable[[], None]
    logits: Tensor


class DecodeGraphs:
    """Graphs over one PagedMemory and the tensors that the batches of `forward` use.

    rows: of the sampler. width: the most pages that a sequence can have. Row `rows` belongs to no sequence: places that
    pad a bucket belong to it, its only page is page 0, which belongs to none either.
    """

    def __init__(
        self,
        forward: Forward,
        memory: PagedMemory,
        make_batch: Callable[..., PagedBatch],
        *,
        rows: int,
        width: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self.sizes = buckets(rows)
        self.tables = torch.zeros(rows + 1, width, dtype=torch.int32, device=device)
        self._forward = forward
        self._memory = memory
        self._make_batch = make_batch
        self._rows = rows
        self._device = device
        self._capture = capture
        self._reaches = [-(-reach // memory.page_size) for reach in reaches(width * memory.page_size)]
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._held: list[tuple[list[int] | None, int]] = [(None, 0)] * rows
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def warm(self, last: Tensor, report: Callable[[float], None] = lambda share: None) -> bool:
        """Capture every bucket, the largest first, so that the others fit into its memory and write their logits where
        it does. `last`: each row's newest token, the same tensor each time. False, and why in the log, where that does
        not work."""
        try:
            wanted = [(size, width) for size in reversed(self.sizes) for width in reversed(self._reaches)]
            for done, (size, width) in enumerate(wanted):
                self._captured[size, width] = self._captured_bucket(size, width, last)
                report((done + 1) / len(wanted))
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            reason = first_line(error)
            logger.warning("Decoding is not captured in CUDA graphs, and so slower: %s", reason)
            self._captured.clear()
            return False
        return True

    def _captured_bucket(self, size: int, width: int, last: Tensor) -> _Captured:
        inputs = torch.tensor([[self._rows] * size, [1] * size, [0] * size], device=self._device)
        largest = self._captured.get((self.sizes[-1], self._reaches[-1]))

        def decode() -> Tensor:
            logits = self._decode(inputs, last, width)
            return logits if largest is None else largest.logits[:size].copy_(logits)

        replay, logits = self._capture(decode)
        return _Captured(inputs, replay, logits)

    def _decode(self, inputs: Tensor, last: Tensor, width: int) -> Tensor:
        """What is captured: nothing in it asks the host."""
        rows, lengths, positions = inputs[0], inputs[1], inputs[2]
        paging = decoding(
            self.tables[:, :width].index_select(0, rows), lengths, self._starts[: len(rows) + 1], self._memory.page_size
        )
        ids = last.index_select(0, rows.clamp_max(self._rows - 1))
        return self._forward(ids, positions, self._make_batch(paging))

    def run(self, decodes: list[Sequence]) -> Tensor | None:
        """The logits of sequences that decode, in their order; they stand until the next run. None where no bucket
        holds so many."""
        at = bisect_left(self.sizes, len(decodes))
        pages = max(len(self._memory.table(sequence)) for sequence in decodes)
        reach = bisect_left(self._reaches, pages)
        if at == len(self.sizes) or reach == len(self._reaches):
            return None
        captured = self._captured.get((self.sizes[at], self._reaches[reach]))
        if captured is None:
            return None
        for sequence in decodes:
            self._hold(sequence)
        padding = self.sizes[at] - len(decodes)
        rows = [sequence.row for sequence in decodes] + [self._rows] * padding
        lengths = [sequence.computed for sequence in decodes] + [1] * padding
        positions = [sequence.computed - 1 + sequence.shift for sequence in decodes] + [0] * padding
        captured.inputs.copy_(send([rows, lengths, positions], torch.int64, self._device), non_blocking=True)
        captured.replay()
        return captured.logits[: len(decodes)]

    def _hold(self, sequence: Sequence) -> None:
        """The row's pages into the table, if they are others or more than those in it."""
        pages = self._memory.table(sequence)
        held, count = self._held[sequence.row]
        if held is pages and count == len(pages):
            return
        first = count if held is pages else 0
        self.tables[sequence.row, first : len(pages)].copy_(
            send(pages[first:], torch.int32, self._device), non_blocking=True
        )
        self._held[sequence.row] = pages, len(pages)
