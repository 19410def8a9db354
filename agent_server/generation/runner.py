"""A plan → the logits of the sequences that get a token."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor

from agent_server.generation.flat import Forward
from agent_server.generation.kv_cache import KVCache
from agent_server.generation.paged_batch import PagedBatch, send
from agent_server.generation.pages import PagedMemory
from agent_server.generation.scheduler import Plan
from agent_server.generation.sequence import Memory, Sequence
from agent_server.generation.slab_batch import SlabBatch
from agent_server.generation.slabs import SlabMemory


class Runner(Protocol):
    """Runs the model for a step."""

    memory: Memory
    chunked: bool

    def run(self, plan: Plan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        """The sequences that get a token, in the order of the logits `[sequences, vocabulary]` (float32). `last` has
        each row's newest token, which decoding continues from."""


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
        kernel: bool = False,
        flat: Forward | None = None,
    ) -> None:
        self.model = model
        self.memory = memory
        self.cache = cache
        self.device = device
        self.kernel = kernel
        self.flat = flat
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._no_mask = torch.zeros(1, 1, 1, 1, device=device)

    def run(self, plan: Plan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        batch = self._batch(plan)
        ids, positions = self._inputs(plan, batch.order, last)
        ends = list(range(len(plan.decodes)))
        at = len(ends)
        for chunk in plan.chunks:
            at += chunk.length
            if chunk.samples:
                ends.append(at - 1)
        logits = self._forward(ids, positions, batch, ends)
        return batch.order + [chunk.sequence for chunk in plan.chunks if chunk.samples], logits

    def _batch(self, plan: Plan) -> SlabBatch | PagedBatch:
        if isinstance(self.memory, PagedMemory):
            return PagedBatch(plan, self.memory, self.cache, self.device, kernel=self.kernel)
        self.cache.copy(self.memory.copies)
        return SlabBatch(plan, self.memory, self.cache)

    def _inputs(self, plan: Plan, order: list[Sequence], last: Tensor) -> tuple[Tensor, Tensor]:
        positions = [sequence.computed - 1 for sequence in order]
        ids: list[int] = []
        for chunk in plan.chunks:
            end = chunk.start + chunk.length
            ids += chunk.sequence.tokens[chunk.start : end]
            positions.extend(range(chunk.start, end))
        prompt = send(ids, torch.int64, self.device)
        if order:
            rows = send([sequence.row for sequence in order], torch.int64, self.device)
            newest = last.index_select(0, rows)
            prompt = torch.cat([newest, prompt]) if ids else newest
        return prompt, send(positions, torch.int64, self.device)

    def _forward(self, ids: Tensor, positions: Tensor, batch: Any, ends: list[int]) -> Tensor:
        every = len(ends) == len(ids)
        if self.flat is not None:
            return self.flat(ids, positions, None if every else send(ends, torch.int64, self.device), batch).float()
        wanted: Any = 0 if every else send(ends, torch.int64, self.device)
        selection = {"logits_to_keep": wanted} if self._selects else {}
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
