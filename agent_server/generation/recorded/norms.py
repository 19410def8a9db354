"""Root mean square norms of a recorded forward (`flat.py`, `fusion.py`) as one operation each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from agent_server.generation.recorded.rewrites import arguments, aten, calls, same_as, shape

CASTS = (aten.to.dtype, aten.type_as.default)


class Norm(NamedTuple):
    """How a norm is computed. late: the normalised numbers are rounded before they are multiplied by the weight, as
    Llama's are; else after, as Gemma's. offset: what is added to the weight."""

    epsilon: float
    late: bool
    offset: float


def rms_norm(x: Tensor, weight: Tensor, norm: Norm) -> Tensor:
    """Of the last dimension, by torch's own operation, which computes in float32 and rounds to x's precision."""
    if norm.late:
        scale = weight + norm.offset if norm.offset else weight
        return torch.mul(torch.rms_norm(x, weight.shape, None, norm.epsilon), scale)
    return torch.rms_norm(x.float(), weight.shape, weight.float() + norm.offset, norm.epsilon).to(x.dtype)


def join_norms(graph: Graph, compute: Callable[[Tensor, Tensor, Norm], Tensor]) -> None:
    """Root mean square norms as one operation; before an exchange of dimensions, which is nothing to them."""
    for node in calls(graph):
        found = _norm(node)
        if found is None:
            continue
        last, x, weight, norm = found
        source, *dims = arguments(x, aten.transpose.int, 3)
        with graph.inserting_before(last):
            fused = same_as(graph, last, compute, source if dims == [1, 2] else x, weight, norm)
            fused.meta["by_row"] = True
            if dims == [1, 2]:
                fused.meta["val"] = source.meta["val"]
                fused = same_as(graph, last, aten.transpose.int, fused, 1, 2)
        last.replace_all_uses_with(fused)
    graph.eliminate_dead_code()


def _norm(node: Node) -> tuple[Node, Node, Node, Norm] | None:
    """A product with a weight, as far as it is a norm: where it ends, what is normalised, the weight, and how."""
    for value, factor in factors(node):
        weight, offset = _weight(factor)
        if weight is None:
            continue
        rounded = _uncast(value)
        late = rounded is not value or value.meta["val"].dtype == node.meta["val"].dtype
        for wide, root in factors(rounded):
            epsilon = _root_mean_square(root, wide)
            x = _uncast(wide)
            if epsilon is not None and shape(x)[-1:] == shape(weight):
                last = _cast_back(node, x)
                if last.meta["val"].dtype == x.meta["val"].dtype:
                    return last, x, weight, Norm(epsilon, late and last is node, offset)
    return None


def factors(node: Any) -> list[tuple[Node, Node]]:
    left, right = arguments(node, aten.mul.Tensor)
    pair = isinstance(left, Node) and isinstance(right, Node)
    return [(left, right), (right, left)] if pair else []


def _weight(node: Node) -> tuple[Node | None, float]:
    """A constant vector, perhaps with a number added, and that number."""
    inner, added = arguments(node, aten.add.Tensor)
    source = _uncast(inner if isinstance(inner, Node) and isinstance(added, float | int) else node)
    vector = source.op == "get_attr" and len(shape(source)) == 1
    return (source if vector else None), float(added) if isinstance(added, float | int) else 0.0


def _uncast(node: Node) -> Node:
    source = node.args[0] if node.target in CASTS else None
    return source if isinstance(source, Node) else node


def _cast_back(node: Node, x: Node) -> Node:
    """The conversion to x's precision, where that is the only use of a node; else the node."""
    (user, *others) = node.users
    same = not others and user.target in CASTS and user.meta["val"].dtype == x.meta["val"].dtype
    return user if same and user.args[0] is node else node


def _root_mean_square(node: Node, x: Node) -> float | None:
    """The epsilon of `rsqrt(mean(x ** 2) + epsilon)`."""
    (inner,) = arguments(node, aten.rsqrt.default, 1)
    mean, epsilon = arguments(inner, aten.add.Tensor)
    squares, dims, keep = arguments(mean, aten.mean.dim, 3)
    base, exponent = arguments(squares, aten.pow.Tensor_Scalar)
    fits = base is x and exponent == 2 and dims == [-1] and keep is True
    return epsilon if fits and isinstance(epsilon, float) else None
