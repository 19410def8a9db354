"""Data parallel training on the cores of one machine.

One process per core meets the others once a step. Threads meet thousands of times a
step, and wait for each other whenever another program takes a core.
"""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn


@dataclass(frozen=True)
class Workers:
    """This process's place among the training processes."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Tell whether this process writes the checkpoints and the log."""
        return self.rank == 0

    def total(self, numbers: list[float]) -> list[float]:
        """Add up numbers over the processes."""
        values = torch.tensor(numbers, dtype=torch.float64)
        if self.count > 1:
            dist.all_reduce(values)
        return [float(value) for value in values]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the processes."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        _scatter(flat / self.count, gradients)


def _scatter(flat: Tensor, gradients: list[Tensor]) -> None:
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _work(rank: int, task: Callable[[Any, Workers], None], options: Any, meeting: str, count: int) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        task(options, Workers(rank, count))
    finally:
        dist.destroy_process_group()


def run_workers(task: Callable[[Any, Workers], None], options: Any, count: int) -> None:
    """Run a task in one process, or in several that can meet."""
    if count == 1:
        task(options, Workers())
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        spawn(_work, (task, options, meeting, count), nprocs=count)  # type: ignore[no-untyped-call]
