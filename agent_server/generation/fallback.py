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
from agent_server.generation.faults import first_line
from agent_server.generation.scheduler import Plan
from agent_server.generation.sequence import Sequence

CACHE_NAMES = ("past_key_values", "cache_params", "state")


class SeparateMemory:
    """One cache for each running sequence, dropped with it; nothing is shared. `total` tokens in all, of which every
    sequence's `state`, whatever its length, takes so many."""

    def __init__(self, total: int, *, state: int = 0) -> None:
        self.longest = total - state
        self.total = total
        self.caches: dict[int, Any] = {}
        self._state = state
        self._held: dict[int, int] = {}

    @property
    def usage(self) -> float:
        return sum(self._held.values()) / self.total

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        needed = self._state + len(sequence.tokens) + 1
        if sum(self._held.values()) + needed > self.total:
            return None
        self._held[sequence.number] = needed
        return 0

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        held = self._held[sequence.number]
        wanted = max(held, self._state + tokens)
        if sum(self._held.values()) - held + wanted > self.total:
            return False
        self._held[sequence.number] = wanted
        return True

    def publish(self, sequence: Sequence) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self._held.pop(sequence.number)
        self.caches.pop(sequence.number, None)


class SeparateRunner:
    """Runs one sequence after the other. Prompts are not cut: not every recurrent model can go on from the middle.
    turn: length beyond which the model's positions are others from the first token on; a sequence that grows past it is
    computed anew, since what its cache holds was computed with the former."""

    chunked = False

    def __init__(self, model: Any, memory: SeparateMemory, device: torch.device, *, turn: int | None = None) -> None:
        self.model = model
        self.memory = memory
        self.device = device
        self._turn = turn
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[0])
        self._selection = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._positions = "position_ids" in parameters

    def run(self, plan: Plan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        logits = [self._decode(sequence, last[sequence.row].view(1, 1)) for sequence in plan.decodes]
        for chunk in plan.chunks:
            tokens = chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]
            logits.append(self.forward(chunk.sequence, send([tokens], torch.int64, self.device), chunk.start))
        return plan.sampled, torch.cat(logits)

    def _decode(self, sequence: Sequence, newest: Tensor) -> Tensor:
        start = sequence.computed - 1
        if start != self._turn:
            return self.forward(sequence, newest, start)
        self.memory.caches.pop(sequence.number, None)
        before = send([sequence.tokens[:start]], torch.int64, self.device)
        return self.forward(sequence, torch.cat([before, newest], 1), 0)

    def forward(self, sequence: Sequence, ids: Tensor, start: int) -> Tensor:
        """The last logits `[1, vocabulary]` of the tokens `ids` `[1, tokens]`, which stand at `start` and behind it."""
        named: dict[str, Any] = {self._cache_name: self.memory.caches.get(sequence.number), **self._selection}
        if self._positions:  # not every model counts them from what its cache holds
            named["position_ids"] = torch.arange(start, start + ids.shape[1], device=self.device)[None]
        output = self.model(input_ids=ids, use_cache=True, **named)
        cache = output.get(self._cache_name)
        if cache is None:
            raise Unservable("it does not hand out what it has computed, so that sequences cannot be told apart")
        self.memory.caches[sequence.number] = cache
        logits: Tensor = output.logits[:, -1].float()
        return logits


class Unservable(Exception):
    """Why the model cannot even be run one sequence at a time, as half a sentence."""


@torch.inference_mode()
def check_separate(model: Any, device: torch.device) -> None:
    """Two sequences in turns, each a prompt and then token by token, beside the model without a cache. Raises
    Unservable."""
    runner = SeparateRunner(model, SeparateMemory(1), device)
    count = model.config.get_text_config().vocab_size
    rows = [[(7919 * (index + 3 * number) + 11) % count for index in range(12 + 5 * number)] for number in range(2)]
    try:
        for end in (9, 10, 11, 12):
            for number, tokens in enumerate(rows):
                _check_step(runner, number, tokens[: end + 5 * number], 0 if end == 9 else end + 5 * number - 1)
    except Unservable:
        raise
    except Exception as error:
        raise Unservable(
            f"running it with its own cache fails ({type(error).__name__}: {first_line(error)})"
        ) from error


def _check_step(runner: SeparateRunner, number: int, tokens: list[int], start: int) -> None:
    model = runner.model
    ids = torch.tensor([tokens], device=runner.device)
    wanted = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    found = runner.forward(Sequence(number, tokens, len(tokens), len(tokens)), ids[:, start:], start)[0]
    off = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-6))
    if not off <= (EXACT if model.dtype in (torch.float32, torch.float64) else ROUNDED):
        raise Unservable("two sequences in turns give other logits than each by itself")


EXACT = 1e-2
ROUNDED = 0.5
"""Largest difference of logits, as a share of the largest: in 16 bits a token may go to another expert, and recurrences
are summed up in another order; states that sequences share differ by more."""
PROBED = (8, 24)
"""Tokens of the two prompts by which a cache's growth is measured."""


@torch.inference_mode()
def cache_bytes(model: Any) -> tuple[int, int]:
    """Bytes that the model's own cache takes for a token and, whatever the length, for a sequence; by trying. Windows
    and states that stop growing later make it less: then more is kept free than is needed."""
    runner = SeparateRunner(model, SeparateMemory(1), model.device)
    sizes = []
    for number, length in enumerate(PROBED):
        sequence = Sequence(number, [1] * length, length, length)
        runner.forward(sequence, torch.ones(1, length, dtype=torch.int64, device=model.device), 0)
        sizes.append(_tensor_bytes(runner.memory.caches[number]))
    per_token = (sizes[1] - sizes[0]) // (PROBED[1] - PROBED[0])
    return max(0, per_token), max(0, sizes[0] - per_token * PROBED[0])


def _tensor_bytes(root: Any) -> int:
    """All tensors that can be reached from an object, each once."""
    seen: set[int] = set()
    left, total = [root], 0
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            total += item.numel() * item.element_size()
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item
        elif hasattr(item, "__dict__") and not isinstance(item, type | torch.nn.Module):
            left += vars(item).values()
    return total
