"""Rewrites of what surrounds attention in a recorded forward: rotary positions and the order of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from agent_server.generation.recorded.rewrites import arguments, aten, same_as, shape, share


def turn(graph: Graph) -> None:
    """Rotary positions (Su et al. 2021) by halves, `x * cos + (-right, left) * sin`, in three operations: the sign goes
    to the sine, which all layers share, and exchanged halves are a roll."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        found = _turned(node)
        if found is None:
            continue
        x, cosine, sine, half = found
        with graph.inserting_before(node):
            signed = same_as(graph, sine, sign_half, sine, half)
            rotated = same_as(graph, node, rotate, x, cosine, signed)
        node.replace_all_uses_with(rotated)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    share(graph)


def sign_half(sine: Tensor, half: int) -> Tensor:
    """The sine with its first half negative."""
    return torch.cat([torch.neg(sine.narrow(-1, 0, half)), sine.narrow(-1, half, half)], -1)


def rotate(x: Tensor, cosine: Tensor, signed: Tensor) -> Tensor:
    return torch.addcmul(torch.mul(x, cosine), torch.roll(x, x.shape[-1] // 2, -1), signed)


def _turned(node: Node) -> tuple[Node, Node, Node, int] | None:
    """What is turned, cosine, sine and half of the dimension."""
    if node.kwargs or len(node.args) != 2:
        return None
    for one, other in (node.args, node.args[::-1]):
        for x, cosine in _factors(one):
            for exchanged, sine in _factors(other):
                half = _half_exchanged(exchanged, x)
                if half and shape(sine)[-1:] == shape(x)[-1:]:
                    return x, cosine, sine, half
    return None


def _factors(node: Any) -> Iterator[tuple[Node, Node]]:
    left, right = arguments(node, aten.mul.Tensor)
    if isinstance(left, Node) and isinstance(right, Node):
        yield left, right
        yield right, left


def _half_exchanged(node: Node, x: Node) -> int | None:
    """Half the size of x's last dimension, where the node is its right half, negative, and then its left half."""
    parts, dim = arguments(node, aten.cat.default)
    if not parts or len(parts) != 2 or dim not in (-1, len(shape(x)) - 1) or len(shape(x)) < 2:
        return None
    (right,) = arguments(parts[0], aten.neg.default, 1)
    half, odd = divmod(shape(x)[-1], 2)
    fits = arguments(right, torch.narrow, 4) == (x, -1, half, half)
    return half if fits and not odd and arguments(parts[1], torch.narrow, 4) == (x, -1, 0, half) else None


# around attention


def put_tokens_first(graph: Graph) -> None:
    """Attention takes `[tokens, heads, dim]`, which is what projections give: what goes to `[1, heads, tokens, dim]`
    and back stays where it is, and queries and keys that lie side by side are turned together."""
    known: dict[Node, Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        with graph.inserting_before(node):
            tensors = [_by_tokens(graph, source, known) if (source := _back(t)) else t for t in node.args[:3]]
            tensors[:2] = _turned_together(graph, *tensors[:2])
        node.args = (*tensors, *node.args[3:])
    graph.eliminate_dead_code()


def _back(node: Node) -> Node | None:
    """The `[1, heads, tokens, dim]` that the node, `[tokens, heads, dim]`, was made of."""
    selected, *dims = arguments(node, aten.transpose.int, 3)
    source, *at = arguments(selected, aten.select.int, 3)
    return source if dims == [0, 1] and at == [0, 0] else None


def _by_tokens(graph: Graph, node: Node, known: dict[Node, Node]) -> Node:
    """`[1, heads, tokens, dim]` as `[tokens, heads, dim]`; `known`: what was made so already."""
    if node not in known:
        known[node] = _made_by_tokens(graph, node, known)
        known[node].meta["val"] = node.meta["val"][0].transpose(0, 1)
    return known[node]


def _made_by_tokens(graph: Graph, node: Node, known: dict[Node, Node]) -> Node:
    if node.target is rotate:
        return graph.call_function(rotate, tuple(_by_tokens(graph, given, known) for given in node.all_input_nodes))
    if node.target is sign_half:
        return graph.call_function(sign_half, (_by_tokens(graph, node.args[0], known), node.args[1]))  # type: ignore[arg-type]
    source, *dims = arguments(node, aten.transpose.int, 3)
    if dims == [1, 2]:
        if source.target is aten.view.default:
            return graph.call_function(aten.view.default, (source.args[0], list(source.args[1][1:])))
        return graph.call_function(aten.select.int, (source, 0, 0))
    source, dim = arguments(node, aten.unsqueeze.default)
    if dim == 1:
        return graph.call_function(aten.unsqueeze.default, (graph.call_function(aten.select.int, (source, 0, 0)), 1))
    return graph.call_function(aten.transpose.int, (graph.call_function(aten.select.int, (node, 0, 0)), 0, 1))


def _turned_together(graph: Graph, queries: Node, keys: Node) -> list[Node]:
    """Queries and keys `[tokens, heads, dim]`, turned in one piece where they are neighbours in one projection."""
    (q, *angles), (k, *others) = arguments(queries, rotate, 3), arguments(keys, rotate, 3)
    (q_part, q_sizes), (k_part, k_sizes) = arguments(q, aten.view.default), arguments(k, aten.view.default)
    source, q_dim, q_start, q_length = arguments(q_part, torch.narrow, 4)
    other, k_dim, k_start, k_length = arguments(k_part, torch.narrow, 4)
    neighbours = source is other and q_dim == k_dim == -1 and source is not None and q_start + q_length == k_start
    if not neighbours or angles != others or q_sizes != k_sizes:
        return [queries, keys]
    both = graph.call_function(torch.narrow, (source, -1, q_start, q_length + k_length))
    both.meta["val"] = source.meta["val"].narrow(-1, q_start, q_length + k_length)
    turned = graph.call_function(rotate, (graph.call_function(aten.view.default, (both, q_sizes)), *angles))
    heads, more = shape(queries)[1], shape(keys)[1]
    return [
        same_as(graph, queries, torch.narrow, turned, 1, 0, heads),
        same_as(graph, keys, torch.narrow, turned, 1, heads, more),
    ]
