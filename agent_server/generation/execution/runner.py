"""Run the model on a planned step and return the logits."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Batch, attending
from agent_server.generation.attention.batches import Kernel, KVCache, PagedBatch, Paging, SlabBatch, page
from agent_server.generation.device import send
from agent_server.generation.execution.graphs import Capture, CudaCapture, StepGraphs
from agent_server.generation.lora.lora import Loras
from agent_server.generation.multimodal.multimodal import Multimodal, embedded_step, has_media
from agent_server.generation.recorded.flat import Forward
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Memory, Sequence, StepPlan
from agent_server.generation.scheduling.slabs import SlabMemory


class Runner(Protocol):
    """Runs the model for a step."""

    chunked: bool

    @property
    def memory(self) -> Memory:
        """The bookkeeping of the sequences' keys and values."""

    def forward(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        """Run the model on a step. Return the sequences that get a token, and logits (float32): those of the sequences
        `[sequences, vocabulary]`, then those that score prompts, chunk by chunk, then those after each draft token.
        last: each row's newest token, the input of decoding sequences."""


class PackedRunner:
    """Runs packed batches with the attention of `attention.py`, over slabs or pages."""

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
        multimodal: Multimodal | None = None,
    ) -> None:
        self.model = model
        self.memory = memory
        self.cache = cache
        self.device = device
        self.kernel = kernel
        self.flat = flat
        self.record: Callable[[], None] | None = None
        """Records the model's forward, which takes seconds; called when the core is idle."""
        self.multimodal = multimodal
        self.graphs: StepGraphs | None = None
        self.loras: Loras | None = None
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._no_mask = torch.zeros(1, 1, 1, 1, device=device)

    def forward(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        # A step with LoRA adapters uses the model's own forward, whose linear layers apply them.
        has_lora = self.loras is not None and (
            any(s.adapter for s in plan.decodes) or any(chunk.sequence.adapter for chunk in plan.chunks)
        )
        special = any(chunk.draft or chunk.scores or chunk.sequence.media is not None for chunk in plan.chunks)
        if self.graphs is not None and not has_lora and not special:
            replayed = self.graphs.replay(plan)
            if replayed is not None:
                return plan.sampled, replayed
        batch, order = self._batch(plan)
        # The indices of the tokens whose logits are needed. Decoding sequences come first, with one token each.
        ends = list(range(len(plan.decodes)))
        at = len(ends)
        scores: list[int] = []
        drafts: list[int] = []
        for chunk in plan.chunks:
            scores += range(at, at + chunk.scores)
            if chunk.samples:
                ends.append(at + chunk.known - 1)
            drafts += range(at + chunk.known, at + chunk.length)
            at += chunk.length
        selected = ends + scores + drafts
        lora_keys: list[str] = []
        if has_lora:
            lora_keys = [s.adapter for s in order]
            lora_keys += [chunk.sequence.adapter for chunk in plan.chunks for _ in range(chunk.length)]
        with self.loras.applied(lora_keys) if self.loras is not None and lora_keys else contextlib.nullcontext():
            if self.multimodal is not None and has_media(plan):
                output = self.multimodal.model(
                    attention_mask=self._no_mask,
                    use_cache=False,
                    kv=batch,
                    logits_to_keep=send(selected, torch.int64, self.device),
                    **embedded_step(self.multimodal, plan, order, last),
                )
                logits: Tensor = output.logits[0]
            else:
                # Token ids and positions, each `[tokens]`. Ids of decoding sequences are in `last`.
                prompt_ids: list[int] = []
                token_positions = [sequence.computed - 1 + sequence.shift for sequence in order]
                for chunk in plan.chunks:
                    prompt_ids += chunk.tokens()
                    start = chunk.start + chunk.sequence.shift
                    token_positions.extend(range(start, start + chunk.length))
                ids = send(prompt_ids, torch.int64, self.device)
                if order:
                    rows = send([sequence.row for sequence in order], torch.int64, self.device)
                    newest = last.index_select(0, rows)
                    ids = torch.cat([newest, ids]) if prompt_ids else newest
                positions = send(token_positions, torch.int64, self.device)
                some = None if selected == list(range(at)) else send(selected, torch.int64, self.device)
                logits = self._model_forward(ids, positions, some, batch)
        return order + [chunk.sequence for chunk in plan.chunks if chunk.samples], logits.float()

    @property
    def capturable(self) -> bool:
        """Whether attention uses a kernel, which needs no synchronisation with the host."""
        return self.kernel is not None

    def capture(
        self,
        last: Tensor,
        context: int,
        report: Callable[[float], None],
        slow: list[str],
        *,
        chunk_tokens: int,
        step_tokens: int,
        how: Callable[[], Capture] = CudaCapture,
    ) -> None:
        """Capture steps in CUDA graphs and use those from now on, if that is possible. last: as for `run`, one element
        for each row. context: the maximum length of a sequence. chunk_tokens: prompt tokens in a step with decoding
        sequences; 0 to measure how many of `step_tokens` are best. report: called with the progress, 0 to 1.
        slow: gets the reason why steps cannot be captured."""
        memory = self.memory
        if not isinstance(memory, PagedMemory):
            return
        width = -(-min(context, memory.longest) // memory.page_size)
        graphs = StepGraphs(self._model_forward, memory, self._paged, last=last, width=width, capture=how())
        self.graphs = graphs if graphs.warm(report, slow, chunk_tokens=chunk_tokens, step_tokens=step_tokens) else None

    def _batch(self, plan: StepPlan) -> tuple[SlabBatch | PagedBatch, list[Sequence]]:
        """Return the step's batch, and its decoding sequences in the order of the batch."""
        if isinstance(self.memory, PagedMemory):
            return self._paged(page(plan, self.memory, self.device)), plan.decodes
        self.cache.copy(self.memory.copies)
        batch = SlabBatch(plan, self.memory, self.cache)
        return batch, batch.order

    def _paged(self, paging: Paging) -> PagedBatch:
        assert isinstance(self.memory, PagedMemory)
        return PagedBatch(paging, self.cache, self.memory.page_size, kernel=self.kernel)

    def _model_forward(self, ids: Tensor, positions: Tensor, selected: Tensor | None, batch: Batch) -> Tensor:
        """Return the logits of the selected tokens, or of all if None, in the model's precision."""
        if self.flat is not None and not (self.loras is not None and self.loras.active):
            return self.flat(ids, positions, selected, batch)
        selection = {"logits_to_keep": 0 if selected is None else selected} if self._selects else {}
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
        return logits if self._selects or selected is None else logits.index_select(0, selected)
