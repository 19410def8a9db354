"""A model's forward as one flat list of tensor operations: for models so small that Python costs more than they do.

A decoding step of such a model spends most of its time in module calls, keyword arguments and checks. So the forward
is recorded once (`torch.export`), with the number of tokens left open, and played back without them. On the way,
what changes nothing is dropped, and projections of the same input become one. The recording is kept only if it gives
the model's own logits (`probe.py`); what cannot be recorded is run as it is.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from torch.fx import Graph, GraphModule, Node

from agent_server.generation.attention.attention import Call, attending
from agent_server.generation.recorded.rewrites import (
    aten,
    drop_batch,
    drop_what_changes_nothing,
    fold,
    join_norms,
    join_projections,
    multiply,
    put_tokens_first,
    rms_norm,
    shape,
    share,
    shorten,
    turn,
)

logger = logging.getLogger("agent_server.generation")
Forward = Callable[[Tensor, Tensor, Tensor | None, object], Tensor]
"""ids `[tokens]`, positions `[tokens]`, the places whose logits are wanted (None: all), and the batch → logits
`[places, vocabulary]`."""
Prepare = Callable[[Tensor], Any]
Multiply = Callable[[Any], Tensor]
"""What a product makes of its inputs first, and the product of that: inputs and outputs `[tokens, size]`."""
Rewrite = Callable[[Graph, dict[str, Tensor]], None]
"""Makes fewer operations of a recording, whose attributes are the given tensors; it may add some."""


@torch.library.custom_op("agent_server::attend", mutates_args=())
def _recorded(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    raise NotImplementedError("This only marks a place in a recording.")


@_recorded.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    return queries.new_empty(*queries.shape[:2], values.shape[2])


class _AttentionRecorder:
    """The batch that a recording is made with: remembers how each layer attends."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[float, dict[str, Any]]] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        self.layers[layer] = call.scale, {"sliding_window": call.window, "softcap": call.softcap}
        out: Tensor = torch.ops.agent_server.attend(call.queries, call.keys, call.values, call.sinks, layer)
        return out


class _Packed(torch.nn.Module):
    """The model as the packed runner calls it."""

    def __init__(self, model: Any, recorder: _AttentionRecorder) -> None:
        super().__init__()
        self.model = model
        self.recorder = recorder
        self.register_buffer("no_mask", torch.zeros(1, 1, 1, 1, device=model.device))

    def forward(self, ids: Tensor, positions: Tensor, selected: Tensor) -> Tensor:
        with attending(self.recorder):
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                attention_mask=self.no_mask,
                use_cache=False,
                kv=self.recorder,
                logits_to_keep=selected,
            )
        logits: Tensor = output.logits[0]
        return logits


class Recording:
    """A forward that is played back."""

    def __init__(self, graph: Graph, constants: dict[str, Tensor]) -> None:
        used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        self._graph, self._constants = graph, {name: constant for name, constant in constants.items() if name in used}
        self.build()

    def build(self) -> None:
        """Make what is played of the graph as it is now."""
        module = GraphModule(self._constants, self._graph)
        for name, tensor in self._constants.items():
            object.__setattr__(module, name, tensor)  # past the module's own slow look-up
        self._played: Callable[..., tuple[Tensor]] = module.forward

    def __call__(self, ids: Tensor, positions: Tensor, selected: Tensor | None, batch: object) -> Tensor:
        return self._played(ids, positions, selected, batch)[0]

    def release(self) -> None:
        """Hold nothing but the graph's own weights until `build` is called again."""
        del self._played
        self._graph.owning_module = None

    def beside(self, weight: Tensor) -> list[Tensor]:
        """The weights that are multiplied with the same input as this one, itself among them, in their order; those of
        layers with a bias alone."""
        groups: dict[Node, list[Tensor]] = {}
        for node in self._products():
            x, constant, *bias = _arguments(node)
            alone = bias or len(constant.users) > 1
            groups.setdefault(node if alone else x, []).append(self._constants[constant.target])
        matching = (group for group in groups.values() if any(_same(weight, other) for other in group))
        return next(matching, [weight])

    def multiply_by(self, weights: list[Tensor], prepare: Prepare, multiply: Multiply) -> None:
        """Compute the products with these weights, which stand beside each other, by a kernel that gives all of their
        rows, and hold the weights no longer: between `release` and `build`. What is prepared of the same input is
        prepared once."""
        nodes = [node for weight in weights for node in self._products() if self._is_by(node, weight)]
        if len(weights) == 1:
            for node in nodes:
                self._replace(node, self._product(node, prepare, multiply))
            return
        product, start = self._product(nodes[0], prepare, multiply), 0
        for node, weight in zip(nodes, weights, strict=True):
            with self._graph.inserting_before(node):
                part = self._graph.call_function(torch.narrow, (product, -1, start, len(weight)))
            self._replace(node, part)
            start += len(weight)

    def _product(self, node: Node, prepare: Prepare, multiply: Multiply) -> Node:
        x, *_ = _arguments(node)
        with self._graph.inserting_before(node):
            if len(shape(x)) == 2:
                return self._graph.call_function(multiply, (self._prepared(x, prepare),))
            return self._graph.call_function(_by_rows(prepare, multiply), (x,))

    def _replace(self, node: Node, replacement: Node) -> None:
        _, constant, *bias = _arguments(node)
        if bias:
            with self._graph.inserting_before(node):
                replacement = self._graph.call_function(torch.add, (replacement, bias[0]))
        node.replace_all_uses_with(replacement)
        self._graph.erase_node(node)
        if not constant.users:
            self._graph.erase_node(constant)
            constant.meta.clear()  # it has the weight too
            del self._constants[str(constant.target)]

    def _products(self) -> list[Node]:
        return list(self._graph.find_nodes(op="call_function", target=torch.nn.functional.linear))

    def _is_by(self, product: Node, weight: Tensor) -> bool:
        return _same(self._constants[_arguments(product)[1].target], weight)

    def _prepared(self, x: Node, prepare: Prepare) -> Node:
        for user in x.users:
            if user.target is prepare:
                return user
        with self._graph.inserting_after(x):
            return self._graph.call_function(prepare, (x,))


def _arguments(product: Node) -> tuple[Any, ...]:
    """Input, weight and, where there is one, bias of a linear layer."""
    return product.args


def _same(weight: Tensor, other: Tensor) -> bool:
    return weight.data_ptr() == other.data_ptr()


def _by_rows(prepare: Prepare, multiply: Multiply) -> Callable[[Tensor], Tensor]:
    def product(x: Tensor) -> Tensor:
        outputs = multiply(prepare(x.flatten(0, -2)))
        return outputs.reshape(*x.shape[:-1], outputs.shape[-1])

    return product


_exporting = threading.Lock()
"""torch.export keeps its state in the process: engines in threads of one process record one after the other."""


def flatten(model: Any, how: Rewrite | None = None) -> Recording | None:
    """The recorded forward of a model whose attention is that of `attention.py`; None if it cannot be recorded. how:
    the rewrites, those of this file unless given."""
    recorder = _AttentionRecorder()
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        return None
    try:
        # torch prints what it had recorded when it fails, a line for each operation; what it raises is logged below
        with _exporting, torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            program = _record(_Packed(model, recorder).eval())
        return _play(program, recorder, how or rewrite)
    except Exception as error:  # tracing a model's code may raise anything
        logger.info("The model's forward is run as it is: %s", (str(error).splitlines() or ["?"])[0])
        return None


def _record(module: torch.nn.Module) -> ExportedProgram:
    device = next(module.parameters()).device
    example = [torch.arange(count, device=device) for count in (7, 7, 3)]
    tokens, places = Dim("tokens"), Dim("places")
    shapes = ({0: tokens}, {0: tokens}, {0: places})
    return export(module, tuple(example), dynamic_shapes=shapes, strict=False)


def _play(program: ExportedProgram, recorder: _AttentionRecorder, how: Rewrite) -> Recording:
    graph = program.graph
    constants = _constants(program)
    how(graph, constants)
    _attend_for_real(graph, recorder)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = DIRECT.get(node.target, node.target)
    return Recording(graph, constants)


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


def rewrite_around_products(graph: Graph, constants: dict[str, Tensor]) -> None:
    """The same, but for the linear layers, which stay as they are."""
    drop_what_changes_nothing(graph)
    share(graph)
    _rewrite_between(graph, constants)


def _rewrite_between(graph: Graph, constants: dict[str, Tensor]) -> None:
    shorten(graph)
    join_norms(graph, rms_norm)
    turn(graph)
    put_tokens_first(graph)
    fold(graph, constants)
    share(graph)
    drop_batch(graph)
    graph.eliminate_dead_code()


def rewrite(graph: Graph, constants: dict[str, Tensor]) -> None:
    """By fewer operations. `constants`: the tensors behind the graph's attributes, to which some are added."""
    drop_what_changes_nothing(graph)
    share(graph)
    join_projections(graph, constants)
    _rewrite_between(graph, constants)
    multiply(graph, constants)
    graph.eliminate_dead_code()


def _attend_for_real(graph: Graph, recorder: _AttentionRecorder) -> None:
    """The batch becomes an argument, and the marked places ask it."""
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        batch = graph.placeholder("batch")
    for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
        *tensors, sinks, layer = node.args
        scale, options = recorder.layers[layer]
        node.target = _attention(layer, scale, options)
        node.args = (batch, *tensors, sinks)


def _attention(layer: int, scale: float, options: dict[str, object]) -> Callable[..., Tensor]:
    def attend(batch: Any, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
        attention_options = options if sinks is None else {**options, "s_aux": sinks}
        out: Tensor = batch.attend(layer, Call(queries, keys, values, scale, attention_options))
        return out

    attend.__name__ = f"attend_{layer}"
    return attend


DIRECT: dict[object, Callable[..., object]] = {
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
