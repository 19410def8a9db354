"""A recorded forward (`flat.py`) for a GPU: what stands between its products becomes one launch each.

Norms with the residual before them, rotations with the norms before them, and gates are found by their operations,
never by a model's name; projections of the same input are joined. Whatever is not found stays as it was recorded. The
result is kept only if it gives the model's own logits (`probe.fit_flat`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from agent_server.generation.recorded.kernels.layers import add_rms_norm, gated, rms_norm, rotate
from agent_server.generation.recorded.rewrites import (
    Norm,
    aten,
    drop_batch,
    drop_what_changes_nothing,
    factors,
    fold,
    join_norms,
    join_projections,
    put_tokens_first,
    same_as,
    shape,
    share,
    shorten,
    turn,
)
from agent_server.generation.recorded.rewrites import arguments as arguments_of
from agent_server.generation.recorded.rewrites import rotate as turned


def fuse(graph: Graph, constants: dict[str, Tensor]) -> None:
    """By fewer launches. `constants`: the tensors behind the graph's attributes, to which some are added."""
    drop_what_changes_nothing(graph)
    share(graph)
    join_norms(graph, rms_norm)
    join_projections(graph, constants)
    shorten(graph)
    narrow_halves(graph)
    turn(graph)
    put_tokens_first(graph)
    fold(graph, constants)
    share(graph)
    drop_batch(graph)
    fuse_rotations(graph)
    fuse_gates(graph)
    fuse_residuals(graph)
    graph.eliminate_dead_code()


# around attention


def fuse_rotations(graph: Graph) -> None:
    """Queries and keys of a layer turned in one launch, and normalised in it where both are."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        queries, keys = node.args[:2]
        rotation = _turned_apart(queries, keys) or _turned_together(graph, queries, keys)
        if rotation is None or shape(rotation[0])[-1] % 2:
            continue
        q, k, *angles = rotation
        operands: tuple[Any, ...] = (q, k, *angles)
        with graph.inserting_before(node):
            (q_in, q_weight, q_norm), (k_in, k_weight, k_norm) = (_normed(graph, part) for part in (q, k))
            if q_norm is not None and k_norm is not None and _alike(q_norm, k_norm):
                operands = (q_in, k_in, *angles, (q_weight, k_weight), (q_norm, k_norm))
            both = graph.call_function(rotate, operands)
            node.args = (
                same_as(graph, queries, operator.getitem, both, 0),
                same_as(graph, keys, operator.getitem, both, 1),
                *node.args[2:],
            )
    graph.eliminate_dead_code()


def _turned_apart(queries: Node, keys: Node) -> tuple[Node, ...] | None:
    """Queries and keys before they are turned, cosine and sine; None where they are not turned by the same."""
    (q, *angles), (k, *others) = arguments_of(queries, turned, 3), arguments_of(keys, turned, 3)
    return (q, k, *angles) if q is not None and angles == others else None


def _turned_together(graph: Graph, queries: Node, keys: Node) -> tuple[Node, ...] | None:
    """The same where both are parts of one tensor that is turned."""
    (both, *q_part), (other, *k_part) = arguments_of(queries, torch.narrow, 4), arguments_of(keys, torch.narrow, 4)
    x, *angles = arguments_of(both, turned, 3)
    if x is None or other is not both or q_part[0] != 1 or k_part[0] != 1:
        return None
    with graph.inserting_before(both):
        parts = [same_as(graph, like, torch.narrow, x, *at) for like, at in ((queries, q_part), (keys, k_part))]
    return (*parts, *angles)


def _normed(graph: Graph, node: Node) -> tuple[Any, ...]:
    """What is normalised, `[tokens, heads, dim]`, its weight, and how; three times None if nothing is."""
    inner, *at = arguments_of(node, aten.select.int, 3)
    if at != [0, 0]:
        return arguments_of(node, rms_norm, 3)
    x, *rest = arguments_of(inner, rms_norm, 3)
    return (None, None, None) if x is None else (same_as(graph, node, aten.select.int, x, 0, 0), *rest)


def _alike(one: Norm, other: Norm) -> bool:
    return one.late == other.late and one.offset == other.offset


# gates and residuals


def fuse_gates(graph: Graph) -> None:
    """The activated half of a joined projection times the other half."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        for active, up in factors(node):
            gelu = active.target is aten.gelu.default and active.kwargs.get("approximate") == "tanh"
            if not gelu and active.target is not aten.silu.default:
                continue
            gate, dim, start, width = arguments_of(active.args[0], torch.narrow, 4)
            if gate is None or (dim, start) != (-1, 0) or shape(gate)[-1:] != (2 * width,):
                continue
            if arguments_of(up, torch.narrow, 4) == (gate, -1, width, width):
                node.target, node.args = gated, (gate, gelu)
                break
    graph.eliminate_dead_code()


def narrow_halves(graph: Graph) -> None:
    """Two halves of the last dimension as parts of known length."""
    for node in graph.find_nodes(op="call_function", target=aten.chunk.default):
        x, count, dim = arguments_of(node, aten.chunk.default, 3)
        if count != 2 or dim not in (-1, len(shape(x)) - 1) or shape(x)[-1] % 2:
            continue
        width = shape(x)[-1] // 2
        for part in list(node.users):
            start = int(part.args[1]) * width
            with graph.inserting_before(part):
                part.replace_all_uses_with(same_as(graph, part, torch.narrow, x, -1, start, width))
    graph.eliminate_dead_code()


def fuse_residuals(graph: Graph) -> None:
    """A sum whose norm is taken next: both in one launch."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        norms = [user for user in node.users if user.target is rms_norm]
        x, residual = arguments_of(node, aten.add.Tensor)
        tensors = isinstance(x, Node) and isinstance(residual, Node) and shape(x) == shape(residual)
        if not norms or not tensors or node.kwargs:
            continue
        with graph.inserting_before(node):
            both = graph.call_function(add_rms_norm, (x, residual, *norms[0].args[1:]))
            total = same_as(graph, node, operator.getitem, both, 0)
            normed = same_as(graph, norms[0], operator.getitem, both, 1)
        norms[0].replace_all_uses_with(normed)
        graph.erase_node(norms[0])
        node.replace_all_uses_with(total)
    graph.eliminate_dead_code()
