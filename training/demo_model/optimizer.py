"""Muon for weight matrices, computed for all matrices of one shape at once.

Batched, in bfloat16, the orthogonalisation costs a few percent of a training step
on a CPU with matrix instructions; one matrix at a time it costs more than the step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# bfloat16 where the CPU has instructions for it: elsewhere they are emulated, and a step takes tens of times as long.
BFLOAT16_CPU = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
COMPUTE_TYPE = torch.bfloat16 if BFLOAT16_CPU else torch.float32
# The quintic iteration of Muon: its coefficients push every singular value towards one.
QUINTIC = (3.4445, -4.775, 2.0315)
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Replace each matrix of a stack by a nearly orthogonal one with the same directions."""
    linear, cubic, quintic = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    result: Tensor = (matrices.mT if tall else matrices).contiguous()
    result = (result / (result.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(COMPUTE_TYPE)
    for _ in range(ITERATIONS):
        gram = torch.bmm(result, result.mT)
        result = linear * result + torch.bmm(cubic * gram + quintic * torch.bmm(gram, gram), result)
    result = result.mT if tall else result
    return result.float()


def _by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(tuple(parameter.shape), []).append(parameter)
    return list(groups.values())


class BatchedMuon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, for two-dimensional parameters."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups = _by_shape(self.param_groups[0]["params"])
        for group in self.groups:
            self.state[group[0]]["momentum"] = torch.zeros(len(group), *group[0].shape)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix from its gradient."""
        lr = self.param_groups[0]["lr"]
        for group in self.groups:
            self._step_group(group, lr)

    def _step_group(self, group: list[nn.Parameter], lr: float) -> None:
        gradient = torch.stack([_gradient(parameter) for parameter in group])
        momentum: Tensor = self.state[group[0]]["momentum"]
        momentum.lerp_(gradient, 1 - self.momentum)
        updates = orthogonalise(gradient.lerp(momentum, self.momentum))
        rows, columns = group[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(group, updates, strict=True):
            parameter.mul_(1 - lr * self.weight_decay).add_(update, alpha=-lr * scale)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a parameter has no gradient")
    return parameter.grad


def build_optimizers(model: nn.Module, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers and AdamW for embeddings and norms."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else others).append(parameter)
    adam = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [BatchedMuon(matrices, matrix_lr), adam]


def set_rate(optimizers: list[torch.optim.Optimizer], base: list[float], factor: float) -> None:
    """Scale every optimizer's base learning rate."""
    for optimizer, rate in zip(optimizers, base, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * factor


def state_of(optimizers: list[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Return what a checkpoint has to keep of the optimizers."""
    return [optimizer.state_dict() for optimizer in optimizers]
