"""A recorded forward (`flat.py`) for a GPU, with the operations between matrix products fused to one launch each.

Norms with the residual before them, rotations with the norms before them, and gates are recognised by their operations,
never by a model's name, and projections of the same input are merged. Everything else stays as it was recorded. The
result is used only if it yields the model's own logits (`probe.fit_flat`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from agent_server.generation.recorded.kernels.layers import add_rms_norm, gated, grouped_product, rms_norm, rotate
from agent_server.generation.recorded.rewrites import (
    aten,
    call_like,
    drop_batch,
    drop_no_ops,
    factors,
    fold_constants,
    match_call,
    merge_duplicates,
    merge_norms,
    merge_projections,
    shape,
    simplify,
    simplify_rotations,
    use_token_layout,
)
from agent_server.generation.recorded.rewrites import rotate as recorded_rotate


def fuse(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Rewrite a recorded graph to fewer launches. constants: its tensors by name; new ones are added."""
    drop_no_ops(graph)
    merge_duplicates(graph)
    merge_norms(graph, rms_norm)
    merge_projections(graph, constants)
    simplify(graph)
    narrow_halves(graph)
    simplify_rotations(graph)
    use_token_layout(graph)
    fold_constants(graph, constants)
    merge_duplicates(graph)
    drop_batch(graph)
    fuse_rotations(graph)
    fuse_gates(graph)
    fuse_residuals(graph)
    group_products(graph)
    graph.eliminate_dead_code()


# around attention


def fuse_rotations(graph: Graph) -> None:
    """Rotate the queries and keys of a layer in one launch, with their norms if both have one."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        queries, keys = node.args[:2]
        (q, *angles), (k, *other_angles) = match_call(queries, recorded_rotate, 3), match_call(keys, recorded_rotate, 3)
        if q is None or angles != other_angles:
            rotation = _rotated_together(graph, queries, keys)
            if rotation is None:
                continue
            q, k, *angles = rotation
        if shape(q)[-1] % 2:
            continue
        operands: tuple[Any, ...] = (q, k, *angles)
        with graph.inserting_before(node):
            (q_in, q_weight, q_norm), (k_in, k_weight, k_norm) = (_match_norm(graph, part) for part in (q, k))
            both_normalised = q_norm is not None and k_norm is not None
            if both_normalised and q_norm.late == k_norm.late and q_norm.offset == k_norm.offset:
                operands = (q_in, k_in, *angles, (q_weight, k_weight), (q_norm, k_norm))
            both = graph.call_function(rotate, operands)
            node.args = (
                call_like(graph, queries, operator.getitem, both, 0),
                call_like(graph, keys, operator.getitem, both, 1),
                *node.args[2:],
            )
    graph.eliminate_dead_code()


def _rotated_together(graph: Graph, queries: Node, keys: Node) -> tuple[Node, ...] | None:
    """Return queries and keys before their rotation, cosine and sine, if both are parts of one rotated tensor."""
    (both, *q_part), (other, *k_part) = match_call(queries, torch.narrow, 4), match_call(keys, torch.narrow, 4)
    x, *angles = match_call(both, recorded_rotate, 3)
    if x is None or other is not both or q_part[0] != 1 or k_part[0] != 1:
        return None
    with graph.inserting_before(both):
        parts = [call_like(graph, like, torch.narrow, x, *at) for like, at in ((queries, q_part), (keys, k_part))]
    return (*parts, *angles)


def _match_norm(graph: Graph, node: Node) -> tuple[Any, ...]:
    """Return a norm's input `[tokens, heads, dim]`, weight and parameters; three times None if the node is no norm."""
    inner, *at = match_call(node, aten.select.int, 3)
    if at != [0, 0]:
        return match_call(node, rms_norm, 3)
    x, *rest = match_call(inner, rms_norm, 3)
    return (None, None, None) if x is None else (call_like(graph, node, aten.select.int, x, 0, 0), *rest)


# gates and residuals


def fuse_gates(graph: Graph) -> None:
    """Fuse the activation of one half of a merged projection with the product with the other half."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        for active, up in factors(node):
            gelu = active.target is aten.gelu.default and active.kwargs.get("approximate") == "tanh"
            if not gelu and active.target is not aten.silu.default:
                continue
            gate, dim, start, width = match_call(active.args[0], torch.narrow, 4)
            if gate is None or (dim, start) != (-1, 0) or shape(gate)[-1:] != (2 * width,):
                continue
            if match_call(up, torch.narrow, 4) == (gate, -1, width, width):
                node.target, node.args = gated, (gate, gelu)
                break
    graph.eliminate_dead_code()


def narrow_halves(graph: Graph) -> None:
    """Turn a division of the last dimension into halves into two slices of known length."""
    for node in graph.find_nodes(op="call_function", target=aten.chunk.default):
        x, count, dim = match_call(node, aten.chunk.default, 3)
        if count != 2 or dim not in (-1, len(shape(x)) - 1) or shape(x)[-1] % 2:
            continue
        width = shape(x)[-1] // 2
        for part in list(node.users):
            start = int(part.args[1]) * width
            with graph.inserting_before(part):
                part.replace_all_uses_with(call_like(graph, part, torch.narrow, x, -1, start, width))
    graph.eliminate_dead_code()


def fuse_residuals(graph: Graph) -> None:
    """Fuse a sum with the norm that follows it."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        norms = [user for user in node.users if user.target is rms_norm]
        x, residual = match_call(node, aten.add.Tensor)
        tensors = isinstance(x, Node) and isinstance(residual, Node) and shape(x) == shape(residual)
        if not norms or not tensors or node.kwargs:
            continue
        with graph.inserting_before(node):
            both = graph.call_function(add_rms_norm, (x, residual, *norms[0].args[1:]))
            total = call_like(graph, node, operator.getitem, both, 0)
            normed = call_like(graph, norms[0], operator.getitem, both, 1)
        norms[0].replace_all_uses_with(normed)
        graph.erase_node(norms[0])
        node.replace_all_uses_with(total)
    graph.eliminate_dead_code()


# experts

GROUPED_PRODUCTS = "aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"
"""The second is registered by transformers when it imports its experts."""


def group_products(graph: Graph) -> None:
    """Multiply the tokens of each expert by its matrix with a kernel that reads the numbers of tokens on the device.
    torch copies them to the host and waits, except for bfloat16 on Hopper and Blackwell, where it has such a kernel."""
    for node in graph.nodes:
        product = node.meta.get("val")
        if str(node.target) not in GROUPED_PRODUCTS or not isinstance(product, Tensor):
            continue
        major = torch.cuda.get_device_capability(product.device)[0] if product.is_cuda else 0
        if product.dtype != torch.bfloat16 or major not in (9, 10):
            node.target, node.args, node.kwargs = grouped_product, node.args[:3], {}
