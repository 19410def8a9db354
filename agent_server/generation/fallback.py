"""The plain path for models whose attention does not fit packed batches: recurrent and hybrid models, positional
biases, whatever comes next.

Every sequence has its own cache, made and understood by the model alone, and is run by itself. Scheduling, sampling,
control and everything else are the same; only the speed of a batch is missing.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import send
from agent_server.generation.scheduler import Plan
from agent_server.generation.sequence import Sequence

CACHE_NAMES = ("past_key_values", "cache_params")


class SeparateMemory:
    """One cache for each running sequence, dropped with it; nothing is shared. `total` tokens in all."""

    def __init__(self, total: int) -> None:
        self.longest = total
        self.total = total
        self.caches: dict[int, Any] = {}
        self._held: dict[int, int] = {}

    @property
    def usage(self) -> float:
        return sum(self._held.values()) / self.total

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        if sum(self._held.values()) + len(sequence.tokens) + 1 > self.total:
            return None
        self._held[sequence.number] = len(sequence.tokens) + 1
        return 0

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        held = self._held[sequence.number]
        if sum(self._held.values()) - held + max(held, tokens) > self.total:
            return False
        self._held[sequence.number] = max(held, tokens)
        return True

    def publish(self, sequence: Sequence) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self._held.pop(sequence.number)
        self.caches.pop(sequence.number, None)


class SeparateRunner:
    """Runs one sequence after the other. Prompts are not cut: not every recurrent model can go on from the middle."""

    chunked = False

    def __init__(self, model: Any, memory: SeparateMemory, device: torch.device) -> None:
        self.model = model
        self.memory = memory
        self.device = device
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[0])
        self._selection = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def run(self, plan: Plan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        logits = [self._forward(sequence, last[sequence.row].view(1, 1)) for sequence in plan.decodes]
        for chunk in plan.chunks:
            tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]
            logits.append(self._forward(chunk.sequence, send([tokens], torch.int64, self.device)))
        return plan.sampled, torch.cat(logits)

    def _forward(self, sequence: Sequence, ids: Tensor) -> Tensor:
        cache = {self._cache_name: self.memory.caches.get(sequence.number)}
        output = self.model(input_ids=ids, use_cache=True, **cache, **self._selection)
        self.memory.caches[sequence.number] = output[self._cache_name]
        logits: Tensor = output.logits[:, -1].float()
        return logits
