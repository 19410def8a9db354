"""A plan → the logits of the sequences that get a token."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, Protocol

import torch
from torch import Tensor

from agent_server.generation.adapters import Adapters
from agent_server.generation.attention import attending
from agent_server.generation.attention_kernels import Kernel
from agent_server.generation.device import send
from agent_server.generation.flat import Forward
from agent_server.generation.graphs import Capture, DecodeGraphs, cuda_capture
from agent_server.generation.kv_cache import KVCache
from agent_server.generation.paged_batch import PagedBatch, Paging, page
from agent_server.generation.pages import PagedMemory
from agent_server.generation.sequence import Memory, Sequence
from agent_server.generation.slab_batch import SlabBatch
from agent_server.generation.slabs import SlabMemory
from agent_server.generation.step_plan import Chunk, StepPlan
from agent_server.generation.vision.seeing import seen, shows
from agent_server.generation.vision.vision import Vision


class Runner(Protocol):
    """Runs the model for a step."""

    chunked: bool

    @property
    def memory(self) -> Memory:
        """Where the sequences' keys and values are kept."""

    def run(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        """The sequences that get a token, in the order of the logits `[sequences, vocabulary]` (float32), behind which
        come those of the places that score their prompts, chunk by chunk, and those behind each guess. `last` has each
        row's newest token, which decoding continues from."""


class PackedRunner:
    """Packed batches through the attention of `attention.py`, over slabs or pages."""

    chunked = True

    def __init__(
        self,
        model: Any,
        memory: SlabMemory | PagedMemory,
        cache: KVCache,
        device: torch.device,
        *,
        kernel: Kernel | None = None,
        flat: Forward | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.model = model
        self.memory = memory
        self.cache = cache
        self.device = device
        self.kernel = kernel
        self.flat = flat
        self.vision = vision
        self.graphs: DecodeGraphs | None = None
        self.adapters: Adapters | None = None
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._no_mask = torch.zeros(1, 1, 1, 1, device=device)

    def run(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        adapted = self.adapters is not None and _adapted(plan)
        plain = self.graphs is not None and not plan.chunks and not adapted
        if plain and self.graphs is not None and (logits := self.graphs.run(plan.decodes)) is not None:
            return plan.decodes, logits
        batch, order = self._batch(plan)
        ends = list(range(len(plan.decodes)))
        at = len(ends)
        scores: list[int] = []
        guesses: list[int] = []
        for chunk in plan.chunks:
            scores += range(at, at + chunk.scores)
            if chunk.samples:
                ends.append(at + chunk.known - 1)
            guesses += range(at + chunk.known, at + chunk.length)
            at += chunk.length
        wanted = ends + scores + guesses
        keys = _keys(order, plan.chunks) if adapted else []
        with self.adapters.applied(keys) if self.adapters is not None and keys else contextlib.nullcontext():
            if self.vision is not None and shows(plan):
                logits = self._see(self.vision, plan, order, last, batch, wanted)
            else:
                logits = self._forward(*self._inputs(plan, order, last), batch, wanted)
        return order + [chunk.sequence for chunk in plan.chunks if chunk.samples], logits

    @property
    def capturable(self) -> bool:
        """Whether layers attend by a kernel, which asks the host for nothing."""
        return self.kernel is not None

    def capture(self, last: Tensor, context: int, report: Callable[[float], None], how: Capture | None = None) -> None:
        """Decode by graphs from here on, if they can be captured. `last` as for `run`, one place for each row;
        `context`: the most tokens that a sequence may have; how: CUDA's way unless given."""
        memory = self.memory
        if not isinstance(memory, PagedMemory):
            return
        graphs = DecodeGraphs(
            lambda ids, positions, batch: self._forward(ids, positions, batch, list(range(len(ids)))),
            memory,
            self._paged,
            rows=len(last),
            width=-(-min(context, memory.longest) // memory.page_size),
            device=self.device,
            capture=how or cuda_capture(),
        )
        self.graphs = graphs if graphs.warm(last, report) else None

    def _batch(self, plan: StepPlan) -> tuple[SlabBatch | PagedBatch, list[Sequence]]:
        """The step's batch, and its decoding sequences in their order there."""
        if isinstance(self.memory, PagedMemory):
            return self._paged(page(plan, self.memory, self.device)), plan.decodes
        self.cache.copy(self.memory.copies)
        batch = SlabBatch(plan, self.memory, self.cache)
        return batch, batch.order

    def _paged(self, paging: Paging) -> PagedBatch:
        assert isinstance(self.memory, PagedMemory)
        return PagedBatch(paging, self.cache, self.memory.page_size, kernel=self.kernel)

    def _inputs(self, plan: StepPlan, order: list[Sequence], last: Tensor) -> tuple[Tensor, Tensor]:
        positions = [sequence.computed - 1 + sequence.shift for sequence in order]
        ids: list[int] = []
        for chunk in plan.chunks:
            end = chunk.start + chunk.length
            ids += chunk.tokens()
            shift = chunk.sequence.shift
            positions.extend(range(chunk.start + shift, end + shift))
        prompt = send(ids, torch.int64, self.device)
        if order:
            rows = send([sequence.row for sequence in order], torch.int64, self.device)
            newest = last.index_select(0, rows)
            prompt = torch.cat([newest, prompt]) if ids else newest
        return prompt, send(positions, torch.int64, self.device)

    def _forward(self, ids: Tensor, positions: Tensor, batch: Any, ends: list[int]) -> Tensor:
        every = ends == list(range(len(ids)))
        if self.flat is not None and not (self.adapters is not None and self.adapters.active):
            return self.flat(ids, positions, None if every else send(ends, torch.int64, self.device), batch).float()
        wanted: Any = 0 if every else send(ends, torch.int64, self.device)
        selection = {"logits_to_keep": wanted} if self._selects else {}
        with attending(batch):
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                attention_mask=self._no_mask,
                use_cache=False,
                kv=batch,
                **selection,
            )
        logits: Tensor = output.logits[0]
        if not self._selects and not every:
            logits = logits.index_select(0, wanted)
        return logits.float()

    def _see(
        self, vision: Vision, plan: StepPlan, order: list[Sequence], last: Tensor, batch: object, ends: list[int]
    ) -> Tensor:
        named = seen(vision, plan, order, last)
        wanted = send(ends, torch.int64, self.device)
        output = vision.model(attention_mask=self._no_mask, use_cache=False, kv=batch, logits_to_keep=wanted, **named)
        logits: Tensor = output.logits[0].float()
        return logits


def _adapted(plan: StepPlan) -> bool:
    """Whether sequences of the step have adapters: it then takes the model's own forward, whose layers are asked."""
    return any(s.adapter for s in plan.decodes) or any(chunk.sequence.adapter for chunk in plan.chunks)


def _keys(order: Items[Sequence], chunks: Items[Chunk]) -> list[str]:
    """Each token's adapter, in the order of the step's tokens."""
    return [s.adapter for s in order] + [chunk.sequence.adapter for chunk in chunks for _ in range(chunk.length)]
