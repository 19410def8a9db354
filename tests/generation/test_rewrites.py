"""Rewrites of a recording: which operations are left, and that the values are the same."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from agent_server.generation.recorded import flat, rewrites

HALF = 4


class Layer(nn.Module):
    """The shape of a transformer's block around its rotary positions, attention left out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=True)
        self.weight = nn.Parameter(torch.rand(16))
        self.register_buffer("angles", torch.arange(1.0, 9.0))

    def forward(self, ids):
        x = self.embedding(ids[None])
        normed = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        heads = self.up(normed).view(1, -1, 4, 8)
        left, right = heads[..., :HALF], heads[..., HALF:]
        turned = heads * self.angles.cos() + torch.cat((-right, left), -1) * self.angles.sin()
        attended = turned[0].tanh()[None].reshape(1, -1, 32)
        x = x + nn.functional.linear(attended, self.down.weight)
        return (x + self.down(attended))[0]


@pytest.fixture(scope="module")
def recorded():
    torch.manual_seed(3)
    layer = Layer().requires_grad_(False)
    program = export(layer, (torch.arange(7),), dynamic_shapes=({0: Dim("tokens")},), strict=False)
    constants = flat._constants(program)
    flat.rewrite(program.graph, constants)
    return layer, torch.fx.GraphModule(constants, program.graph)


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("count", [1, 5])
def test_the_values_are_the_same(recorded, count):
    layer, module = recorded
    ids = torch.arange(count) % 11
    torch.testing.assert_close(module(ids)[0], layer(ids))


def test_what_is_left_is_short(recorded):
    names = [getattr(target, "__name__", str(target)) for target in targets(recorded[1])]
    assert "rotate" in names and any(name.startswith("rms_norm") for name in names)
    assert not {"cat.default", "cos.default", "sin.default", "rsqrt.default", "linear.default"} & set(names)


def test_what_is_added_to_a_product_is_part_of_it(recorded):
    assert targets(recorded[1]).count(torch.addmm) == 2


def test_an_operation_on_two_numbers_of_different_types_is_not_shared():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    whole, half = (graph.call_function(torch.ops.aten.mul.Tensor, (x, number)) for number in (1, 1.0))
    graph.output((whole, half))
    rewrites.merge_duplicates(graph)
    assert len([node for node in graph.nodes if node.op == "call_function"]) == 2


def test_nothing_is_shared_where_something_changes_in_between():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    one = graph.call_function(torch.ops.aten.zeros_like.default, (x,))
    other = graph.call_function(torch.ops.aten.zeros_like.default, (x,))
    graph.call_function(torch.ops.aten.add_.Tensor, (one, x))
    graph.output((one, other))
    rewrites.merge_duplicates(graph)
    assert len([node for node in graph.nodes if node.op == "call_function"]) == 3
