"""A model's forward as a flat list of tensor operations, for models so small that Python takes most of the time.

A decoding step of such a model spends most of its time in module calls, keyword arguments and checks. So the forward
is recorded once (`torch.export`), for any number of tokens, and replayed without those. Operations without effect are
removed, and projections of the same input become one. The recording is used only if it yields the model's own logits
(`probe.py`). A model that cannot be recorded runs as it is.
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
from torch.overrides import TorchFunctionMode

from agent_server.generation.attention.attention import Call, attending
from agent_server.generation.recorded.rewrites import (
    aten,
    drop_batch,
    drop_no_ops,
    fold_constants,
    merge_duplicates,
    merge_norms,
    merge_projections,
    rms_norm,
    shape,
    simplify,
    simplify_rotations,
    use_matmul,
    use_token_layout,
)

logger = logging.getLogger("agent_server.generation")
Forward = Callable[[Tensor, Tensor, Tensor | None, object], Tensor]
"""ids `[tokens]`, positions `[tokens]`, the indices of the tokens whose logits are needed (None: all), and the batch →
logits `[selected, vocabulary]`."""
Prepare = Callable[[Tensor], Any]
Multiply = Callable[[Any], Tensor]
"""A product in two parts: the preparation of its inputs `[tokens, size]`, and the product of their result, `[tokens,
size]`."""
Rewrite = Callable[[Graph, dict[str, Tensor]], None]
"""Rewrites a recorded graph in place. The second argument has its constants by name; new ones may be added."""


@torch.library.custom_op("agent_server::attend", mutates_args=())
def _recorded(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    raise NotImplementedError("This only marks a place in a recording.")


@_recorded.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    return queries.new_empty(*queries.shape[:2], values.shape[2])


class _AttentionRecorder:
    """The batch that the model is recorded with. layers: each layer's scale and options of attention."""

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
    """A recorded forward, called like `Forward`."""

    def __init__(self, graph: Graph, constants: dict[str, Tensor]) -> None:
        used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        self._graph, self._constants = graph, {name: constant for name, constant in constants.items() if name in used}
        self.build()

    def build(self) -> None:
        """Compile the current graph to the function that is replayed."""
        module = GraphModule(self._constants, self._graph)
        for name, tensor in self._constants.items():
            object.__setattr__(module, name, tensor)  # avoids the module's slow attribute look-up
        self._replay: Callable[..., tuple[Tensor]] = module.forward

    def __call__(self, ids: Tensor, positions: Tensor, selected: Tensor | None, batch: object) -> Tensor:
        return self._replay(ids, positions, selected, batch)[0]

    def release(self) -> None:
        """Drop the compiled function and its references to weights, until `build` is called."""
        del self._replay
        self._graph.owning_module = None

    def same_input_weights(self, weight: Tensor) -> list[Tensor]:
        """Return the weights that are multiplied with the same input as this one, with itself, in their order; only
        itself if its layer has a bias."""
        groups: dict[Node, list[Tensor]] = {}
        for node in self._products():
            x, constant, *bias = _arguments(node)
            if constant.target not in self._constants:  # the model computes it
                continue
            alone = bias or len(constant.users) > 1
            groups.setdefault(node if alone else x, []).append(self._constants[constant.target])
        matching = (group for group in groups.values() if any(_same(weight, other) for other in group))
        return next(matching, [weight])

    def multiply_by(self, weights: list[Tensor], prepare: Prepare, multiply: Multiply) -> None:
        """Compute the products with these weights, which have the same input, with one kernel that yields the outputs
        of all of them, and drop the weights. Call it between `release` and `build`. An input that several products
        prepare is prepared once."""
        nodes = [
            node for weight in weights for node in self._products() if self._is_constant(_arguments(node)[1], weight)
        ]
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

    def look_up(self, weight: Tensor, values: Callable[[Tensor], Tensor]) -> None:
        """Look up the rows of this embedding with a function of the ids, and drop the weight. Call it between `release`
        and `build`."""
        for node in self._graph.find_nodes(op="call_function", target=torch.embedding):
            constant, ids, *_ = node.args
            if self._is_constant(constant, weight):
                with self._graph.inserting_before(node):
                    self._replace_by(node, constant, self._graph.call_function(values, (ids,)))

    def _product(self, node: Node, prepare: Prepare, multiply: Multiply) -> Node:
        x, *_ = _arguments(node)
        if len(shape(x)) == 2:
            prepared_x = next((user for user in x.users if user.target is prepare), None)
            if prepared_x is None:
                with self._graph.inserting_after(x):
                    prepared_x = self._graph.call_function(prepare, (x,))
            with self._graph.inserting_before(node):
                return self._graph.call_function(multiply, (prepared_x,))

        def multiply_rows(inputs: Tensor) -> Tensor:
            outputs = multiply(prepare(inputs.flatten(0, -2)))
            return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])

        with self._graph.inserting_before(node):
            return self._graph.call_function(multiply_rows, (x,))

    def _replace(self, node: Node, replacement: Node) -> None:
        _, constant, *bias = _arguments(node)
        if bias:
            with self._graph.inserting_before(node):
                replacement = self._graph.call_function(torch.add, (replacement, bias[0]))
        self._replace_by(node, constant, replacement)

    def _replace_by(self, node: Node, constant: Node, replacement: Node) -> None:
        """constant: the node's weight, which is dropped with its last use."""
        node.replace_all_uses_with(replacement)
        self._graph.erase_node(node)
        if not constant.users:
            self._graph.erase_node(constant)
            constant.meta.clear()  # it refers to the weight too
            del self._constants[str(constant.target)]

    def _is_constant(self, node: Node, weight: Tensor) -> bool:
        """Return whether a node is this weight. A model may also multiply with tensors that it computes."""
        constant = self._constants.get(str(node.target))
        return constant is not None and _same(constant, weight)

    def _products(self) -> list[Node]:
        return list(self._graph.find_nodes(op="call_function", target=torch.nn.functional.linear))


def _arguments(product: Node) -> tuple[Any, ...]:
    """Return the input, weight and, if there is one, bias of a linear layer."""
    return product.args


def _same(weight: Tensor, other: Tensor) -> bool:
    return weight.data_ptr() == other.data_ptr()


class RecordingInterrupted(BaseException):
    """The recording was interrupted. This is not an Exception, so that no handler of errors in a model's code takes it
    for one."""


class InterruptibleRecording(TorchFunctionMode):
    """Raises RecordingInterrupted from the next operation of torch once `interrupted` returns true."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self._interrupted = interrupted

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if self._interrupted():
            raise RecordingInterrupted
        return func(*args, **(kwargs or {}))


_export_lock = threading.Lock()
"""torch.export has global state, so engines in threads of one process record one after the other."""


def flatten(model: Any, how: Rewrite | None = None, reasons: list[str] | None = None) -> Recording | None:
    """Record the forward of a model that uses the attention of `attention.py`; None if it cannot be recorded. how: the
    rewrites of the recording, `rewrite` unless given. reasons: gets the reason for None."""
    reasons = [] if reasons is None else reasons
    recorder = _AttentionRecorder()
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        reasons.append("its forward computes all logits")
        return None
    try:
        module = _Packed(model, recorder).eval()
        device = next(module.parameters()).device
        example = tuple(torch.arange(count, device=device) for count in (7, 7, 3))
        tokens, selected = Dim("tokens"), Dim("places")
        shapes = ({0: tokens}, {0: tokens}, {0: selected})
        # When it fails, torch prints a line for each recorded operation. The error itself is logged below.
        with _export_lock, torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            program = export(module, example, dynamic_shapes=shapes, strict=False)
        graph, constants = program.graph, _constants(program)
        (how or rewrite)(graph, constants)
        # The batch becomes an argument of the graph, and the marks of attention calls to it.
        last = graph.find_nodes(op="placeholder")[-1]
        with graph.inserting_after(last):
            batch = graph.placeholder("batch")
        for node in graph.find_nodes(op="call_function", target=torch.ops.agent_server.attend.default):
            *tensors, sinks, layer = node.args
            scale, options = recorder.layers[layer]
            node.target = _attention(layer, scale, options)
            node.args = (batch, *tensors, sinks)
        for node in graph.nodes:
            if node.op == "call_function":
                node.target = DIRECT.get(node.target, node.target)
        return Recording(graph, constants)
    except Exception as error:  # tracing a model's code may raise anything
        reasons.append((str(error).splitlines() or ["?"])[0])
        logger.info("The model's forward is run as it is: %s", reasons[-1])
        return None


def _constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Turn parameters and buffers into attributes of the graph, which remain the model's own tensors. Returns them by
    name."""
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
    """Rewrite all but the linear layers."""
    drop_no_ops(graph)
    merge_duplicates(graph)
    _rewrite_between(graph, constants)


def _rewrite_between(graph: Graph, constants: dict[str, Tensor]) -> None:
    simplify(graph)
    merge_norms(graph, rms_norm)
    simplify_rotations(graph)
    use_token_layout(graph)
    fold_constants(graph, constants)
    merge_duplicates(graph)
    drop_batch(graph)
    graph.eliminate_dead_code()


def rewrite(graph: Graph, constants: dict[str, Tensor]) -> None:
    """Rewrite a recorded graph to fewer operations. constants: its tensors by name; new ones are added."""
    drop_no_ops(graph)
    merge_duplicates(graph)
    merge_projections(graph, constants)
    _rewrite_between(graph, constants)
    use_matmul(graph, constants)
    graph.eliminate_dead_code()


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
"""Cheaper callables for the same operations: calling an overload costs a microsecond more."""
