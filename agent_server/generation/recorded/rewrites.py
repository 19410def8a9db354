"""Rewrites of a recorded forward (`flat.py`), norms and rotary positions included: same values, cheaper operations.

Every rewrite looks at operations and shapes, never at a model's name, and leaves alone what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
FOLDED_ELEMENTS = 65536
"""Constants of up to so many elements are worked out beforehand."""


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def add_constant(graph: Graph, constants: dict[str, Tensor], name: str, tensor: Tensor) -> Node:
    """A new attribute, where the graph's insertion point is."""
    constants[name] = tensor
    setattr(graph.owning_module, name, tensor)
    node = graph.create_node("get_attr", name)
    node.meta["val"] = tensor
    return node


def shape(node: Any) -> tuple[Any, ...]:
    """() for what is no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def same_as(graph: Graph, like: Node, target: Any, *arguments: Any) -> Node:
    """A call whose value is of the shape and kind of `like`'s."""
    node = graph.call_function(target, arguments)
    node.meta = dict(like.meta)
    return node


# what need not be done


def drop_what_changes_nothing(graph: Graph) -> None:
    """Assertions, conversions to what a tensor is already, dropout outside training, and a dimension that is taken
    away and put back."""
    for node in calls(graph):
        if node.target in ASSERTIONS:
            graph.erase_node(node)
        elif (same := _same(node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _same(node: Node) -> Node | None:
    """The node that this one's value equals."""
    before = node.args[0] if node.args else None
    if not isinstance(before, Node) or "val" not in before.meta:
        return None
    if node.target is aten.to.dtype and before.meta["val"].dtype == node.args[1]:
        return before
    if node.target is aten.dropout.default and not node.args[2]:
        return before
    if node.target is aten.unsqueeze.default and before.target is aten.select.int and before.args[2] == 0:
        source = before.args[0]
        assert isinstance(source, Node)
        if before.args[1] == node.args[1] == 0 and source.meta["val"].shape[0] == 1:
            return source
    return None


def share(graph: Graph) -> None:
    """What is computed twice from the same inputs is computed once, unless something may change it in between."""
    if any(_changes_inputs(node) for node in calls(graph)):
        return
    first_nodes: dict[Any, Node] = {}
    for node in calls(graph):
        first = first_nodes.setdefault(
            (node.target, str(node.args), str(node.kwargs)), node
        )  # as text, 1 and 1.0 differ
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _changes_inputs(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def fold(graph: Graph, constants: dict[str, Tensor]) -> None:
    """What depends on constants alone is worked out now."""
    for number, node in enumerate(calls(graph)):
        inputs = node.all_input_nodes
        if not inputs or any(given.op != "get_attr" for given in inputs) or math.prod(shape(node)) > FOLDED_ELEMENTS:
            continue
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda given: constants[str(given.target)])
        value = node.target(*given[0], **given[1])  # type: ignore[operator]
        if isinstance(value, Tensor):
            with graph.inserting_before(node):
                node.replace_all_uses_with(add_constant(graph, constants, f"folded_{number}", value))
            graph.erase_node(node)
    graph.eliminate_dead_code()


# linear layers


def join_projections(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Linear layers of the same input as one, whose output is cut. The weights become parts of one tensor."""
    groups: dict[Node, list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        weight = node.args[1]
        if len(node.args) == 2 and weight.op == "get_attr" and len(weight.users) == 1:
            groups.setdefault(node.args[0], []).append(node)
    for number, nodes in enumerate(group for group in groups.values() if len(group) > 1):
        _join(graph, constants, f"joined_{number}", nodes)
    graph.eliminate_dead_code()


def _join(graph: Graph, constants: dict[str, Tensor], name: str, nodes: list[Node]) -> None:
    weights = [constants[node.args[1].target] for node in nodes]  # type: ignore[union-attr, index]
    joined = torch.cat(weights).detach()
    with graph.inserting_before(nodes[0]):
        constant = add_constant(graph, constants, name, joined)
        whole = graph.call_function(aten.linear.default, (nodes[0].args[0], constant))
        before = nodes[0].meta["val"]
        whole.meta["val"] = before.new_empty(*before.shape[:-1], len(joined))
        start = 0
        for node, weight in zip(nodes, weights, strict=True):
            part = same_as(graph, node, torch.narrow, whole, -1, start, len(weight))
            node.replace_all_uses_with(part)
            weight.data = joined[start : start + len(weight)]
            start += len(weight)
    for node in nodes:
        graph.erase_node(node)


def multiply(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Linear layers on matrices as products, and what is added to one as part of it."""
    for number, node in enumerate(graph.find_nodes(op="call_function", target=aten.linear.default)):
        x, weight, *bias = node.args
        if len(shape(x)) != 2 or weight.op != "get_attr":
            continue
        added = _added(node) if not bias else None
        with graph.inserting_before(node if added is None else added[0]):
            turned = add_constant(graph, constants, f"turned_{number}", constants[weight.target].t())
            if added is not None:
                product = same_as(graph, node, torch.addmm, added[1], x, turned)
            elif bias:
                product = same_as(graph, node, torch.addmm, bias[0], x, turned)
            else:
                product = same_as(graph, node, torch.mm, x, turned)
        (node if added is None else added[0]).replace_all_uses_with(product)
    graph.eliminate_dead_code()


def _added(node: Node) -> tuple[Node, Node] | None:
    """The addition that is the only use of a node, and what of the same shape is added to it there."""
    (user, *others) = node.users
    if others or user.target is not aten.add.Tensor or user.kwargs or len(user.args) != 2:
        return None
    other = user.args[1] if user.args[0] is node else user.args[0]
    return (user, other) if isinstance(other, Node) and shape(other) == shape(node) and other is not node else None


# short cuts


def shorten(graph: Graph) -> None:
    """The same in fewer operations: slices of a known length, root mean squares, and a choice of all the places."""
    for node in calls(graph):
        if node.target is aten.slice.Tensor and (part := _narrowed(node)) is not None:
            node.target, node.args, node.kwargs = torch.narrow, part, {}
        elif node.target is aten.mul.Tensor and (norm := _normalised(node)) is not None:
            _normalise(graph, node, *norm)
        elif node.target is aten.index.Tensor and len(at := tuple(node.args[1])) == 2 and at[0] is None:  # type: ignore[arg-type]
            node.target, node.args = places, (node.args[0], at[1])
    graph.eliminate_dead_code()


def _narrowed(node: Node) -> tuple[Any, ...] | None:
    """A slice's input, dimension (counted from the end), start and length."""
    given: tuple[Any, ...] = node.args
    source, dim, start, end, *step = given
    size = source.meta["val"].shape[dim]
    if step or not all(isinstance(number, int) for number in (size, start, end)):
        return None
    start, end = min(start, size), min(end, size)
    dim = dim if dim < 0 else dim - len(shape(source))
    return (source, dim, start, end - start) if 0 <= start <= end else None


def places(tensor: Tensor, selected: Tensor | None) -> Tensor:
    return tensor if selected is None else tensor.index_select(-2, selected)


def _normalised(node: Node) -> tuple[Any, Any, float] | None:
    """The input, weight and epsilon, where the node is `weight * (x * rsqrt(mean(x^2) + epsilon))`."""
    for weight, scaled in (node.args, node.args[::-1]):
        x, root = arguments(scaled, aten.mul.Tensor)
        (added,) = arguments(root, aten.rsqrt.default, 1)
        mean, epsilon = arguments(added, aten.add.Tensor)
        square, dims = arguments(mean, aten.mean.dim)
        source, exponent = arguments(square, aten.pow.Tensor_Scalar)
        if source is None or source is not x or exponent != 2 or dims != [-1] or not isinstance(epsilon, float):
            continue
        if isinstance(weight, Node) and source.meta["val"].dtype == torch.float32:
            return source, weight, epsilon
    return None


def arguments(node: Any, target: Any, count: int = 2) -> tuple[Any, ...]:
    """The first arguments of a node that calls `target`; as many times None otherwise."""
    fits = isinstance(node, Node) and node.target is target and len(node.args) >= count
    return tuple(node.args[:count]) if fits else (None,) * count


def _normalise(graph: Graph, node: Node, x: Node, weight: Node, epsilon: float) -> None:
    """Root mean square normalisation (Zhang and Sennrich 2019) by the lengths of rows: with n numbers in a row, the
    mean square plus epsilon is the square of hypot(length, sqrt(n epsilon)) over n."""
    root = math.sqrt(shape(x)[-1])
    with graph.inserting_before(node):
        scaled = same_as(graph, weight, aten.mul.Tensor, weight, root)
    node.target, node.args = _rms_norm(root * math.sqrt(epsilon)), (x, scaled)
    node.meta["by_row"] = True


def _rms_norm(least: float) -> Callable[[Tensor, Tensor], Tensor]:
    bound = torch.tensor(least)

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.mul(torch.div(x, torch.hypot(length, bound)), weight)

    rms_norm.__name__ = f"rms_norm_{id(bound)}"
    return rms_norm


# a batch of one


def drop_batch(graph: Graph) -> None:
    """The leading dimension of one, which the model wants and nothing here needs: between the embedding and the logits
    tensors are matrices, as far as operations do not care."""
    matrices: set[Node] = set()
    for node in calls(graph):
        given = [argument for argument in node.all_input_nodes if argument in matrices]
        if (bare := _unbatched(node)) is not None:
            node.args = bare
            matrices.add(node)
        elif node.target in RESHAPES and given:
            continue  # the new shape is told in full
        elif given and node.target is aten.select.int and node.args[1:] == (0, 0) and _goes_out(node):
            node.replace_all_uses_with(given[0])
        elif given and _indifferent(node, matrices):
            matrices.add(node)
        else:
            with graph.inserting_before(node):
                for matrix in given:
                    node.replace_input_with(matrix, graph.call_function(torch.unsqueeze, (matrix, 0)))
    for node in matrices:
        node.meta["val"] = node.meta["val"][0]
    graph.eliminate_dead_code()


def _goes_out(node: Node) -> bool:
    return all(user.op == "output" for user in node.users)


def _unbatched(node: Node) -> tuple[Any, ...] | None:
    """Arguments by which the node gives `[tokens, size]` in place of `[1, tokens, size]`: the embedding of unsqueezed
    ids, and what is reshaped after attention."""
    if node.target is aten.embedding.default:
        weight, ids, *rest = node.args
        (bare, dim) = arguments(ids, aten.unsqueeze.default)
        return (weight, bare, *rest) if dim == 0 and len(shape(bare)) == 1 else None
    if node.target in RESHAPES and len(shape(node)) == 3 and shape(node)[0] == 1:
        (bare, dim) = arguments(node.args[0], aten.unsqueeze.default)
        sizes: Any = node.args[1]
        return (bare, list(sizes[1:])) if dim == 0 and sizes[0] == 1 else None
    return None


def _indifferent(node: Node, matrices: set[Node]) -> bool:
    """Whether the operation gives the same without the leading dimension: every tensor in it is a matrix already, or a
    vector, or a constant of an operation by rows."""
    others = [given for given in node.all_input_nodes if given not in matrices]
    if node.target in (aten.linear.default, aten.layer_norm.default, places):
        return node.args[0] in matrices
    if node.target is torch.narrow:
        return bool(node.args[1] == -1)
    known = node.target in ELEMENTWISE or node.meta.get("by_row", False)
    return known and all(len(shape(given)) < 2 for given in others)


def _overloads(names: tuple[str, ...]) -> set[object]:
    return {getattr(getattr(aten, name), overload) for name in names for overload in getattr(aten, name).overloads()}


ASSERTIONS = _overloads(("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"))
ELEMENTWISE = _overloads(("add", "sub", "mul", "div", "neg", "silu", "gelu", "relu", "sigmoid", "tanh", "rsqrt"))
RESHAPES = (aten.view.default, aten.reshape.default)


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
        matched_norm = _norm(node)
        if matched_norm is None:
            continue
        last, x, weight, norm = matched_norm
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
        # A constant vector, perhaps with a number added, and that number.
        inner, added = arguments(factor, aten.add.Tensor)
        source = _uncast(inner if isinstance(inner, Node) and isinstance(added, float | int) else factor)
        vector = source.op == "get_attr" and len(shape(source)) == 1
        weight, offset = (source if vector else None), float(added) if isinstance(added, float | int) else 0.0
        if weight is None:
            continue
        rounded = _uncast(value)
        late = rounded is not value or value.meta["val"].dtype == node.meta["val"].dtype
        for wide, root in factors(rounded):
            epsilon = _root_mean_square(root, wide)
            x = _uncast(wide)
            if epsilon is not None and shape(x)[-1:] == shape(weight):
                # The conversion to x's precision, where that is the only use of a node; else the node.
                (user, *others) = node.users
                same = not others and user.target in CASTS and user.meta["val"].dtype == x.meta["val"].dtype
                last = user if same and user.args[0] is node else node
                if last.meta["val"].dtype == x.meta["val"].dtype:
                    return last, x, weight, Norm(epsilon, late and last is node, offset)
    return None


def factors(node: Any) -> list[tuple[Node, Node]]:
    first, right = arguments(node, aten.mul.Tensor)
    pair = isinstance(first, Node) and isinstance(right, Node)
    return [(first, right), (right, first)] if pair else []


def _uncast(node: Node) -> Node:
    source = node.args[0] if node.target in CASTS else None
    return source if isinstance(source, Node) else node


def _root_mean_square(node: Node, x: Node) -> float | None:
    """The epsilon of `rsqrt(mean(x ** 2) + epsilon)`."""
    (inner,) = arguments(node, aten.rsqrt.default, 1)
    mean, epsilon = arguments(inner, aten.add.Tensor)
    squares, dims, keep = arguments(mean, aten.mean.dim, 3)
    base, exponent = arguments(squares, aten.pow.Tensor_Scalar)
    fits = base is x and exponent == 2 and dims == [-1] and keep is True
    return epsilon if fits and isinstance(epsilon, float) else None


def turn(graph: Graph) -> None:
    """Rotary positions (Su et al. 2021) by halves, `x * cos + (-right, left) * sin`, in three operations: the sign goes
    to the sine, which all layers share, and exchanged halves are a roll."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        rotation = _turned(node)
        if rotation is None:
            continue
        x, cosine, sine, half = rotation
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
    first, right = arguments(node, aten.mul.Tensor)
    if isinstance(first, Node) and isinstance(right, Node):
        yield first, right
        yield right, first


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
    converted: dict[Node, Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        with graph.inserting_before(node):
            tensors = [_by_tokens(graph, source, converted) if (source := _back(t)) else t for t in node.args[:3]]
            tensors[:2] = _turned_together(graph, *tensors[:2])
        node.args = (*tensors, *node.args[3:])
    graph.eliminate_dead_code()


def _back(node: Node) -> Node | None:
    """The `[1, heads, tokens, dim]` that the node, `[tokens, heads, dim]`, was made of."""
    selected, *dims = arguments(node, aten.transpose.int, 3)
    source, *at = arguments(selected, aten.select.int, 3)
    return source if dims == [0, 1] and at == [0, 0] else None


def _by_tokens(graph: Graph, node: Node, converted: dict[Node, Node]) -> Node:
    """`[1, heads, tokens, dim]` as `[tokens, heads, dim]`; `known`: what was made so already."""
    if node not in converted:
        converted[node] = _made_by_tokens(graph, node, converted)
        converted[node].meta["val"] = node.meta["val"][0].transpose(0, 1)
    return converted[node]


def _made_by_tokens(graph: Graph, node: Node, converted: dict[Node, Node]) -> Node:
    if node.target is rotate:
        return graph.call_function(rotate, tuple(_by_tokens(graph, given, converted) for given in node.all_input_nodes))
    if node.target is sign_half:
        return graph.call_function(sign_half, (_by_tokens(graph, node.args[0], converted), node.args[1]))  # type: ignore[arg-type]
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
