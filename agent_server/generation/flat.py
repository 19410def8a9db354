"""A model's forward as one flat list of tensor operations: for models so small that Python costs more than they do.

A decoding step of such a model spends most of its time in module calls, keyword arguments and checks. So the forward
is recorded once (`torch.export`), with the number of tokens left open, and played back without them. On the way,
what changes nothing is dropped, and projections of the same input become one. The recording is kept only if it gives
the model's own logits (`probe.py`); what cannot be recorded is run as it is.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from torch.fx import Graph, GraphModule, Node

from agent_server.generation.attention import Call

logger = logging.getLogger("agent_server.generation")
Forward = Callable[[Tensor, Tensor, Tensor | None, Any], Tensor]
"""ids `[tokens]`, positions `[tokens]`, the places whose logits are wanted (None: all), and the batch → logits
`[places, vocabulary]`."""
aten: Any = torch.ops.aten


@torch.library.custom_op("agent_server::attend", mutates_args=())
def _recorded(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    raise NotImplementedError("This only marks a place in a recording.")


@_recorded.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    return queries.new_empty(queries.shape[2], queries.shape[1], values.shape[3])


class _Recorder:
    """The batch that a recording is made with: remembers how each layer attends."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[float, dict[str, Any]]] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        self.layers[layer] = call.scale, {"sliding_window": call.window, "softcap": call.softcap}
        place = torch.ops.agent_server.attend
        out: Tensor = place(call.queries[None], call.keys[None], call.values[None], call.sinks, layer)
        return out


class _Packed(torch.nn.Module):
    """The model as the packed runner calls it."""

    def __init__(self, model: Any, recorder: _Recorder) -> None:
        super().__init__()
        self.model = model
        self.recorder = recorder
        self.register_buffer("no_mask", torch.zeros(1, 1, 1, 1, device=model.device))

    def forward(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=self.no_mask,
            use_cache=False,
            kv=self.recorder,
            logits_to_keep=wanted,
        )
        logits: Tensor = output.logits[0]
        return logits


def flatten(model: Any) -> Forward | None:
    """The recorded forward of a model whose attention is that of `attention.py`; None if it cannot be recorded."""
    recorder = _Recorder()
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return None
    try:
        with torch.no_grad():
            program = _record(_Packed(model, recorder).eval())
        return _play(program, recorder)
    except Exception as error:  # whatever a tracer meets in somebody's model
        logger.info("The model's forward is run as it is: %s", (str(error).splitlines() or ["?"])[0])
        return None


def _record(module: torch.nn.Module) -> ExportedProgram:
    device = next(module.parameters()).device
    example = [torch.arange(count, device=device) for count in (7, 7, 3)]
    tokens, places = Dim("tokens"), Dim("places")
    shapes = ({0: tokens}, {0: tokens}, {0: places})
    return export(module, tuple(example), dynamic_shapes=shapes, strict=False)


def _play(program: ExportedProgram, recorder: _Recorder) -> Forward:
    graph = program.graph
    constants = _constants(program)
    _drop_what_changes_nothing(graph)
    _join_projections(graph, constants)
    _shorten(graph)
    _attend_for_real(graph, recorder)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = DIRECT.get(node.target, node.target)
    module = GraphModule(constants, graph)
    for name, tensor in constants.items():
        object.__setattr__(module, name, tensor)  # past the module's own slow look-up
    played: Callable[..., tuple[Tensor]] = module.forward
    return lambda ids, positions, wanted, batch: played(ids, positions, wanted, batch)[0]


def _constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Parameters and buffers become attributes of the recording, and stay the model's own tensors."""
    signature = program.graph_signature
    sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    sources.update(signature.inputs_to_lifted_tensor_constants)
    constants: dict[str, Tensor] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name not in sources:
            continue
        source = sources[node.name]
        tensor = program.state_dict[source] if source in program.state_dict else program.constants[source]
        assert isinstance(tensor, Tensor)
        constants[node.name] = tensor
        setattr(program.graph_module, node.name, tensor)
        with program.graph.inserting_before(node):
            constant = program.graph.create_node("get_attr", node.name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        program.graph.erase_node(node)
    return constants


def _drop_what_changes_nothing(graph: Graph) -> None:
    """Assertions, conversions to what a tensor is already, dropout outside training, and a dimension that is taken
    away and put back."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
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


def _join_projections(graph: Graph, constants: dict[str, Tensor]) -> None:
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
    joined = constants[name] = torch.cat(weights).detach()
    setattr(graph.owning_module, name, joined)
    with graph.inserting_before(nodes[0]):
        constant = graph.create_node("get_attr", name)
        whole = graph.call_function(aten.linear.default, (nodes[0].args[0], constant))
        start = 0
        for node, weight in zip(nodes, weights, strict=True):
            part = graph.call_function(torch.narrow, (whole, -1, start, len(weight)))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            weight.data = joined[start : start + len(weight)]
            start += len(weight)
    for node in nodes:
        graph.erase_node(node)


def _shorten(graph: Graph) -> None:
    """The same in fewer operations: slices of a known length, root mean squares, and a choice of all the places."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.slice.Tensor and (part := _narrowed(node)) is not None:
            node.target, node.args, node.kwargs = torch.narrow, part, {}
        elif node.target is aten.mul.Tensor and (norm := _normalised(node)) is not None:
            node.target, node.args = _rms_norm(*norm[2:]), norm[:2]
        elif node.target is aten.index.Tensor and node.args[1][0] is None and len(node.args[1]) == 2:
            node.target, node.args = _places, (node.args[0], node.args[1][1])
    graph.eliminate_dead_code()


def _narrowed(node: Node) -> tuple[Any, ...] | None:
    """A slice's input, dimension, start and length."""
    arguments: tuple[Any, ...] = node.args
    source, dim, start, end, *step = arguments
    size = source.meta["val"].shape[dim]
    if step or not all(isinstance(number, int) for number in (size, start, end)):
        return None
    start, end = min(start, size), min(end, size)
    return (source, dim, start, end - start) if 0 <= start <= end else None


def _normalised(node: Node) -> tuple[Any, ...] | None:
    """The input, weight, epsilon and share of an element, where the node is `weight * (x * rsqrt(mean(x^2) + eps))`."""
    for weight, scaled in (node.args, node.args[::-1]):
        x, root = _arguments(scaled, aten.mul.Tensor)
        (added,) = _arguments(root, aten.rsqrt.default, 1)
        mean, epsilon = _arguments(added, aten.add.Tensor)
        square, dims = _arguments(mean, aten.mean.dim)
        source, exponent = _arguments(square, aten.pow.Tensor_Scalar)
        if source is None or source is not x or exponent != 2 or dims != [-1] or not isinstance(epsilon, float):
            continue
        if isinstance(weight, Node) and source.meta["val"].dtype == torch.float32:
            return source, weight, epsilon, 1.0 / source.meta["val"].shape[-1]
    return None


def _arguments(node: Any, target: Any, count: int = 2) -> tuple[Any, ...]:
    """The first arguments of a node that calls `target`; as many times None otherwise."""
    fits = isinstance(node, Node) and node.target is target and len(node.args) >= count
    return tuple(node.args[:count]) if fits else (None,) * count


def _rms_norm(epsilon: float, share: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Root mean square normalisation (Zhang and Sennrich 2019) by the norm of a row, which is one operation; `share`:
    one part in the size of a row."""
    least = torch.tensor(epsilon)

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.mul(torch.mul(x, torch.rsqrt(torch.addcmul(least, length, length, value=share))), weight)

    rms_norm.__name__ = f"rms_norm_{id(least)}"
    return rms_norm


def _places(tensor: Tensor, wanted: Tensor | None) -> Tensor:
    return tensor if wanted is None else tensor.index_select(1, wanted)


def _attend_for_real(graph: Graph, recorder: _Recorder) -> None:
    """The batch becomes an argument, and the marked places ask it."""
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        batch = graph.placeholder("batch")
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        *tensors, sinks, layer = node.args
        scale, options = recorder.layers[layer]
        node.target = _attention(layer, scale, options)
        node.args = (batch, *tensors, sinks)


def _attention(layer: int, scale: float, options: dict[str, Any]) -> Callable[..., Tensor]:
    def attend(batch: Any, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
        given = options if sinks is None else {**options, "s_aux": sinks}
        out: Tensor = batch.attend(layer, Call(queries, keys, values, scale, given))
        return out

    attend.__name__ = f"attend_{layer}"
    return attend


def _overloads(names: Iterable[str]) -> set[Any]:
    return {getattr(getattr(aten, name), overload) for name in names for overload in getattr(aten, name).overloads()}


ASSERTIONS = _overloads(("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"))
DIRECT: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.cat.default: torch.cat,
    aten.cos.default: torch.cos,
    aten.embedding.default: torch.embedding,
    aten.linear.default: torch.nn.functional.linear,
    aten.matmul.default: torch.matmul,
    aten.mean.dim: torch.mean,
    aten.mul.Tensor: torch.mul,
    aten.neg.default: torch.neg,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.reshape.default: torch.reshape,
    aten.rsqrt.default: torch.rsqrt,
    aten.select.int: torch.select,
    aten.silu.default: torch.nn.functional.silu,
    aten.sin.default: torch.sin,
    aten.sub.Tensor: torch.sub,
    aten.sym_size.int: lambda tensor, dim: tensor.size(dim),
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
    operator.getitem: operator.getitem,
}
"""The same by a shorter way: an operation called through its overload costs a microsecond more."""
