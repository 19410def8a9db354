"""Rewrites of a recorded forward (`flat.py`): the same values from fewer or cheaper operations.

Every rewrite matches operations and shapes, never a model's name, and does not change what it does not recognise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten: Any = torch.ops.aten
FOLDED_ELEMENTS = 65536
"""The maximum size of a constant that is computed when the forward is recorded."""


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def add_constant(graph: Graph, constants: dict[str, Tensor], name: str, tensor: Tensor) -> Node:
    """Add a constant to the graph and insert a node for it at the insertion point."""
    constants[name] = tensor
    setattr(graph.owning_module, name, tensor)
    node = graph.create_node("get_attr", name)
    node.meta["val"] = tensor
    return node


def shape(node: Any) -> tuple[Any, ...]:
    """Return the shape of a node's value; () if it is not a tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def call_like(graph: Graph, like: Node, target: Any, *arguments: Any) -> Node:
    """Insert a call whose value has the shape and dtype of `like`'s."""
    node = graph.call_function(target, arguments)
    node.meta = dict(like.meta)
    return node


# operations that are not needed


def drop_no_ops(graph: Graph) -> None:
    """Remove assertions, conversions to the same dtype, dropout outside of training, and a leading dimension that is
    removed and added again."""
    for node in calls(graph):
        if node.target in ASSERTIONS:
            graph.erase_node(node)
        elif (same := _equal_input(node)) is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _equal_input(node: Node) -> Node | None:
    """Return an earlier node with the same value, if the operation changes nothing."""
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


def merge_duplicates(graph: Graph) -> None:
    """Eliminate common subexpressions: equal operations on the same inputs are computed once. A graph with operations
    that change their inputs is left alone."""
    schemas = (getattr(node.target, "_schema", None) for node in calls(graph))
    if any(schema is not None and schema.is_mutable for schema in schemas):
        return
    first_nodes: dict[Any, Node] = {}
    for node in calls(graph):
        key = node.target, str(node.args), str(node.kwargs)  # as text, 1 and 1.0 differ
        first = first_nodes.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def fold_constants(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Compute now what depends only on constants."""
    for number, node in enumerate(calls(graph)):
        inputs = node.all_input_nodes
        if not inputs or any(each.op != "get_attr" for each in inputs) or math.prod(shape(node)) > FOLDED_ELEMENTS:
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: constants[str(each.target)])
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(value, Tensor):
            with graph.inserting_before(node):
                node.replace_all_uses_with(add_constant(graph, constants, f"folded_{number}", value))
            graph.erase_node(node)
    graph.eliminate_dead_code()


# linear layers


def merge_projections(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Merge linear layers of the same input into one, whose output is divided. Their weights become views of one
    tensor."""
    groups: dict[Node, list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        weight = node.args[1]
        if len(node.args) == 2 and weight.op == "get_attr" and len(weight.users) == 1:
            groups.setdefault(node.args[0], []).append(node)
    for number, nodes in enumerate(group for group in groups.values() if len(group) > 1):
        weights = [constants[node.args[1].target] for node in nodes]  # type: ignore[union-attr, index]
        joined = torch.cat(weights).detach()
        with graph.inserting_before(nodes[0]):
            constant = add_constant(graph, constants, f"joined_{number}", joined)
            whole = graph.call_function(aten.linear.default, (nodes[0].args[0], constant))
            before = nodes[0].meta["val"]
            whole.meta["val"] = before.new_empty(*before.shape[:-1], len(joined))
            start = 0
            for node, weight in zip(nodes, weights, strict=True):
                part = call_like(graph, node, torch.narrow, whole, -1, start, len(weight))
                node.replace_all_uses_with(part)
                weight.data = joined[start : start + len(weight)]
                start += len(weight)
        for node in nodes:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def use_matmul(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Turn linear layers on matrices into matrix products, which include the bias or the tensor that is added next."""
    for number, node in enumerate(graph.find_nodes(op="call_function", target=aten.linear.default)):
        x, weight, *bias = node.args
        if len(shape(x)) != 2 or weight.op != "get_attr":
            continue
        last, added = node, bias[0] if bias else None
        (user, *others) = node.users
        if not bias and not others and user.target is aten.add.Tensor and not user.kwargs and len(user.args) == 2:
            other = user.args[1] if user.args[0] is node else user.args[0]
            if isinstance(other, Node) and shape(other) == shape(node) and other is not node:
                last, added = user, other
        with graph.inserting_before(last):
            transposed = add_constant(graph, constants, f"transposed_{number}", constants[weight.target].t())
            if added is None:
                product = call_like(graph, node, torch.mm, x, transposed)
            else:
                product = call_like(graph, node, torch.addmm, added, x, transposed)
        last.replace_all_uses_with(product)
    graph.eliminate_dead_code()


# cheaper operations


def simplify(graph: Graph) -> None:
    """Use cheaper operations for slices of known length, root mean square norms, and the selection of tokens."""
    for node in calls(graph):
        if node.target is aten.slice.Tensor and (part := _narrow_arguments(node)) is not None:
            node.target, node.args, node.kwargs = torch.narrow, part, {}
        elif node.target is aten.mul.Tensor and (norm := _match_rms_norm(node)) is not None:
            # Root mean square normalisation (Zhang and Sennrich 2019) by the lengths of rows: with n numbers in a row,
            # the mean square plus epsilon is the square of hypot(length, sqrt(n epsilon)) over n.
            x, weight, epsilon = norm
            root = math.sqrt(shape(x)[-1])
            with graph.inserting_before(node):
                scaled = call_like(graph, weight, aten.mul.Tensor, weight, root)
            node.target, node.args = _rms_norm(root * math.sqrt(epsilon)), (x, scaled)
            node.meta["by_row"] = True
        elif node.target is aten.index.Tensor and len(at := tuple(node.args[1])) == 2 and at[0] is None:  # type: ignore[arg-type]
            node.target, node.args = select_tokens, (node.args[0], at[1])
    graph.eliminate_dead_code()


def _narrow_arguments(node: Node) -> tuple[Any, ...] | None:
    """Return a slice's input, dimension (counted from the end), start and length; None if these are not constant."""
    args: tuple[Any, ...] = node.args
    source, dim, start, end, *step = args
    size = source.meta["val"].shape[dim]
    if step or not all(isinstance(number, int) for number in (size, start, end)):
        return None
    start, end = min(start, size), min(end, size)
    dim = dim if dim < 0 else dim - len(shape(source))
    return (source, dim, start, end - start) if 0 <= start <= end else None


def select_tokens(tensor: Tensor, selected: Tensor | None) -> Tensor:
    return tensor if selected is None else tensor.index_select(-2, selected)


def _match_rms_norm(node: Node) -> tuple[Any, Any, float] | None:
    """Return the input, weight and epsilon if the node is `weight * (x * rsqrt(mean(x^2) + epsilon))`."""
    for weight, scaled in (node.args, node.args[::-1]):
        x, root = match_call(scaled, aten.mul.Tensor)
        (added,) = match_call(root, aten.rsqrt.default, 1)
        mean, epsilon = match_call(added, aten.add.Tensor)
        square, dims = match_call(mean, aten.mean.dim)
        source, exponent = match_call(square, aten.pow.Tensor_Scalar)
        if source is None or source is not x or exponent != 2 or dims != [-1] or not isinstance(epsilon, float):
            continue
        if isinstance(weight, Node) and source.meta["val"].dtype == torch.float32:
            return source, weight, epsilon
    return None


def match_call(node: Any, target: Any, count: int = 2) -> tuple[Any, ...]:
    """Return the first `count` arguments of a node that calls `target`; as many times None for any other node."""
    fits = isinstance(node, Node) and node.target is target and len(node.args) >= count
    return tuple(node.args[:count]) if fits else (None,) * count


def _rms_norm(least: float) -> Callable[[Tensor, Tensor], Tensor]:
    bound = torch.tensor(least)

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.mul(torch.div(x, torch.hypot(length, bound)), weight)

    rms_norm.__name__ = f"rms_norm_{id(bound)}"
    return rms_norm


# a batch of one


def drop_batch(graph: Graph) -> None:
    """Remove the leading dimension of one, which only the model needs: between the embedding and the logits tensors
    become matrices, as long as the operations allow it."""
    matrices: set[Node] = set()
    for node in calls(graph):
        matrix_inputs = [argument for argument in node.all_input_nodes if argument in matrices]
        is_output = all(user.op == "output" for user in node.users)
        if (arguments := _unbatched_arguments(node)) is not None:
            node.args = arguments
            matrices.add(node)
        elif node.target in RESHAPES and matrix_inputs:
            continue  # the new shape does not depend on the old one
        elif matrix_inputs and node.target is aten.select.int and node.args[1:] == (0, 0) and is_output:
            node.replace_all_uses_with(matrix_inputs[0])
        elif matrix_inputs and _works_without_batch(node, matrices):
            matrices.add(node)
        else:
            with graph.inserting_before(node):
                for matrix in matrix_inputs:
                    node.replace_input_with(matrix, graph.call_function(torch.unsqueeze, (matrix, 0)))
    for node in matrices:
        node.meta["val"] = node.meta["val"][0]
    graph.eliminate_dead_code()


def _unbatched_arguments(node: Node) -> tuple[Any, ...] | None:
    """Return arguments with which the node yields `[tokens, size]` instead of `[1, tokens, size]`, for the embedding of
    unsqueezed ids and for reshapes after attention; None for other nodes."""
    if node.target is aten.embedding.default:
        weight, ids, *rest = node.args
        (bare, dim) = match_call(ids, aten.unsqueeze.default)
        return (weight, bare, *rest) if dim == 0 and len(shape(bare)) == 1 else None
    if node.target in RESHAPES and len(shape(node)) == 3 and shape(node)[0] == 1:
        (bare, dim) = match_call(node.args[0], aten.unsqueeze.default)
        sizes: Any = node.args[1]
        return (bare, list(sizes[1:])) if dim == 0 and sizes[0] == 1 else None
    return None


def _works_without_batch(node: Node, matrices: set[Node]) -> bool:
    """Return whether the operation yields the same without the leading dimension: its inputs are matrices already,
    vectors, or constants of an operation on rows."""
    others = [each for each in node.all_input_nodes if each not in matrices]
    if node.target in (aten.linear.default, aten.layer_norm.default, select_tokens):
        return node.args[0] in matrices
    if node.target is torch.narrow:
        return bool(node.args[1] == -1)
    known = node.target in ELEMENTWISE or node.meta.get("by_row", False)
    return known and all(len(shape(each)) < 2 for each in others)


def _overloads(names: tuple[str, ...]) -> set[object]:
    return {getattr(getattr(aten, name), overload) for name in names for overload in getattr(aten, name).overloads()}


ASSERTIONS = _overloads(("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"))
ELEMENTWISE = _overloads(("add", "sub", "mul", "div", "neg", "silu", "gelu", "relu", "sigmoid", "tanh", "rsqrt"))
RESHAPES = (aten.view.default, aten.reshape.default)


CASTS = (aten.to.dtype, aten.type_as.default)


class Norm(NamedTuple):
    """The parameters of a root mean square norm. late: the normalised numbers are rounded before the multiplication by
    the weight, as in Llama; else after it, as in Gemma. offset: added to the weight."""

    epsilon: float
    late: bool
    offset: float


def rms_norm(x: Tensor, weight: Tensor, norm: Norm) -> Tensor:
    """Normalise the last dimension with torch's own operation, in float32, rounded to x's precision."""
    if norm.late:
        scale = weight + norm.offset if norm.offset else weight
        return torch.mul(torch.rms_norm(x, weight.shape, None, norm.epsilon), scale)
    return torch.rms_norm(x.float(), weight.shape, weight.float() + norm.offset, norm.epsilon).to(x.dtype)


def merge_norms(graph: Graph, compute: Callable[[Tensor, Tensor, Norm], Tensor]) -> None:
    """Merge the operations of a root mean square norm into one, which is moved before a transposition. compute: that
    operation."""
    for node in calls(graph):
        match = _match_norm(node)
        if match is None:
            continue
        last, x, weight, norm = match
        source, *dims = match_call(x, aten.transpose.int, 3)
        with graph.inserting_before(last):
            fused = call_like(graph, last, compute, source if dims == [1, 2] else x, weight, norm)
            fused.meta["by_row"] = True
            if dims == [1, 2]:
                fused.meta["val"] = source.meta["val"]
                fused = call_like(graph, last, aten.transpose.int, fused, 1, 2)
        last.replace_all_uses_with(fused)
    graph.eliminate_dead_code()


def _match_norm(node: Node) -> tuple[Node, Node, Node, Norm] | None:
    """Return a norm's last node, input, weight and parameters if the node is a norm's product with its weight."""
    for value, factor in factors(node):
        # A constant vector, perhaps with a number added, and that number.
        inner, added = match_call(factor, aten.add.Tensor)
        source = _uncast(inner if isinstance(inner, Node) and isinstance(added, float | int) else factor)
        vector = source.op == "get_attr" and len(shape(source)) == 1
        weight, offset = (source if vector else None), float(added) if isinstance(added, float | int) else 0.0
        if weight is None:
            continue
        rounded = _uncast(value)
        late = rounded is not value or value.meta["val"].dtype == node.meta["val"].dtype
        for wide, root in factors(rounded):
            x = _uncast(wide)
            # rsqrt(mean(x ** 2) + epsilon)
            (inner,) = match_call(root, aten.rsqrt.default, 1)
            mean, epsilon = match_call(inner, aten.add.Tensor)
            squares, dims, keep = match_call(mean, aten.mean.dim, 3)
            base, exponent = match_call(squares, aten.pow.Tensor_Scalar)
            root_mean_square = base is wide and exponent == 2 and dims == [-1] and keep is True
            if root_mean_square and isinstance(epsilon, float) and shape(x)[-1:] == shape(weight):
                # The last node is the conversion to x's precision, if that is the only use of the product.
                (user, *others) = node.users
                same = not others and user.target in CASTS and user.meta["val"].dtype == x.meta["val"].dtype
                last = user if same and user.args[0] is node else node
                if last.meta["val"].dtype == x.meta["val"].dtype:
                    return last, x, weight, Norm(epsilon, late and last is node, offset)
    return None


def factors(node: Any) -> list[tuple[Node, Node]]:
    """Return the two factors of a product in both orders; [] for any other node."""
    first, right = match_call(node, aten.mul.Tensor)
    pair = isinstance(first, Node) and isinstance(right, Node)
    return [(first, right), (right, first)] if pair else []


def _uncast(node: Node) -> Node:
    source = node.args[0] if node.target in CASTS else None
    return source if isinstance(source, Node) else node


def simplify_rotations(graph: Graph) -> None:
    """Compute rotary embeddings by halves (Su et al. 2021), `x * cos + (-right, left) * sin`, in three operations: the
    sign moves to the sine, which all layers share, and the exchange of the halves becomes a roll."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        rotation = _match_rotation(node)
        if rotation is None:
            continue
        x, cosine, sine, half = rotation
        with graph.inserting_before(node):
            signed = call_like(graph, sine, sign_half, sine, half)
            rotated = call_like(graph, node, rotate, x, cosine, signed)
        node.replace_all_uses_with(rotated)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    merge_duplicates(graph)


def sign_half(sine: Tensor, half: int) -> Tensor:
    """Return the sine with its first half negated."""
    return torch.cat([torch.neg(sine.narrow(-1, 0, half)), sine.narrow(-1, half, half)], -1)


def rotate(x: Tensor, cosine: Tensor, signed: Tensor) -> Tensor:
    return torch.addcmul(torch.mul(x, cosine), torch.roll(x, x.shape[-1] // 2, -1), signed)


def _match_rotation(node: Node) -> tuple[Node, Node, Node, int] | None:
    """Return the input, cosine, sine and half of the dimension if the sum is a rotation."""
    if node.kwargs or len(node.args) != 2:
        return None
    for one, other in (node.args, node.args[::-1]):
        for x, cosine in factors(one):
            for exchanged, sine in factors(other):
                half = _exchanged_half(exchanged, x)
                if half and shape(sine)[-1:] == shape(x)[-1:]:
                    return x, cosine, sine, half
    return None


def _exchanged_half(node: Node, x: Node) -> int | None:
    """Return half the size of x's last dimension if the node concatenates x's negated right half and its left half."""
    parts, dim = match_call(node, aten.cat.default)
    if not parts or len(parts) != 2 or dim not in (-1, len(shape(x)) - 1) or len(shape(x)) < 2:
        return None
    (right,) = match_call(parts[0], aten.neg.default, 1)
    half, odd = divmod(shape(x)[-1], 2)
    fits = match_call(right, torch.narrow, 4) == (x, -1, half, half)
    return half if fits and not odd and match_call(parts[1], torch.narrow, 4) == (x, -1, 0, half) else None


# around attention


def use_token_layout(graph: Graph) -> None:
    """Compute attention's inputs as `[tokens, heads, dim]`, as projections return them, without the detour over
    `[1, heads, tokens, dim]`; and rotate queries and keys together if they are adjacent in one projection."""
    converted: dict[Node, Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        with graph.inserting_before(node):
            tensors = []
            for tensor in node.args[:3]:
                # The `[1, heads, tokens, dim]` that the input, `[tokens, heads, dim]`, was made of.
                selected, *dims = match_call(tensor, aten.transpose.int, 3)
                source, *at = match_call(selected, aten.select.int, 3)
                transposed = dims == [0, 1] and at == [0, 0]
                tensors.append(_to_token_layout(graph, source, converted) if transposed else tensor)
            tensors[:2] = _rotate_together(graph, *tensors[:2])
        node.args = (*tensors, *node.args[3:])
    graph.eliminate_dead_code()


def _to_token_layout(graph: Graph, node: Node, converted: dict[Node, Node]) -> Node:
    """Return a node for `[1, heads, tokens, dim]` as `[tokens, heads, dim]`. converted: nodes that have one."""
    if node in converted:
        return converted[node]
    source, *dims = match_call(node, aten.transpose.int, 3)
    added_to, dim = match_call(node, aten.unsqueeze.default)
    if node.target is rotate:
        inputs = tuple(_to_token_layout(graph, each, converted) for each in node.all_input_nodes)
        result = graph.call_function(rotate, inputs)
    elif node.target is sign_half:
        result = graph.call_function(sign_half, (_to_token_layout(graph, node.args[0], converted), node.args[1]))  # type: ignore[arg-type]
    elif dims == [1, 2] and source.target is aten.view.default:
        result = graph.call_function(aten.view.default, (source.args[0], list(source.args[1][1:])))
    elif dims == [1, 2]:
        result = graph.call_function(aten.select.int, (source, 0, 0))
    elif dim == 1:
        result = graph.call_function(
            aten.unsqueeze.default, (graph.call_function(aten.select.int, (added_to, 0, 0)), 1)
        )
    else:
        result = graph.call_function(aten.transpose.int, (graph.call_function(aten.select.int, (node, 0, 0)), 0, 1))
    result.meta["val"] = node.meta["val"][0].transpose(0, 1)
    converted[node] = result
    return result


def _rotate_together(graph: Graph, queries: Node, keys: Node) -> list[Node]:
    """Rotate queries and keys `[tokens, heads, dim]` at once if they are adjacent in one projection."""
    (q, *angles), (k, *others) = match_call(queries, rotate, 3), match_call(keys, rotate, 3)
    (q_part, q_sizes), (k_part, k_sizes) = match_call(q, aten.view.default), match_call(k, aten.view.default)
    source, q_dim, q_start, q_length = match_call(q_part, torch.narrow, 4)
    other, k_dim, k_start, k_length = match_call(k_part, torch.narrow, 4)
    adjacent = source is other and q_dim == k_dim == -1 and source is not None and q_start + q_length == k_start
    if not adjacent or angles != others or q_sizes != k_sizes:
        return [queries, keys]
    both = graph.call_function(torch.narrow, (source, -1, q_start, q_length + k_length))
    both.meta["val"] = source.meta["val"].narrow(-1, q_start, q_length + k_length)
    rotated = graph.call_function(rotate, (graph.call_function(aten.view.default, (both, q_sizes)), *angles))
    heads, more = shape(queries)[1], shape(keys)[1]
    return [
        call_like(graph, queries, torch.narrow, rotated, 1, 0, heads),
        call_like(graph, keys, torch.narrow, rotated, 1, heads, more),
    ]
