"""The delta rule is transformers' own, in fewer passes for one token and without padding for several."""

import copy

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from agent_server.generation.own_caches import delta_rule
from agent_server.generation.own_caches.delta_rule import (
    NAME,
    in_equal_pieces,
    in_fewer_passes,
    install_fast_delta_rule,
)
from tests.generation.tiny_models import make_model

OWN = getattr(modeling_qwen3_5, NAME)
OWN = getattr(OWN, "__wrapped__", OWN) if hasattr(OWN, "in_fewer_passes") else OWN


def given(tokens, batch=3, key_heads=2, heads=4, width=8, depth=6, dtype=torch.float32):
    generator = torch.Generator().manual_seed(tokens)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    inputs = [draw(batch, tokens, key_heads, width) for _ in range(2)] + [draw(batch, tokens, heads, depth)]
    rates = {"g": -draw(batch, tokens, heads).abs(), "beta": draw(batch, tokens, heads).sigmoid()}
    return inputs, {**rates, "initial_state": draw(batch, heads, width, depth).float(), "output_final_state": True}


@pytest.mark.parametrize("normal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 3])
@torch.inference_mode()
def test_outputs_and_states_are_those_of_the_rule(tokens, dtype, normal):
    inputs, options = given(tokens, dtype=dtype)
    options["use_qk_l2norm_in_kernel"] = normal
    mine = {**options, "initial_state": options["initial_state"].clone()}
    wanted, state = OWN(*inputs, **options)
    found, left = in_fewer_passes(OWN)(*inputs, **mine)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-4 if dtype == torch.float32 else 1e-2, atol=1e-5)
    torch.testing.assert_close(left, state, rtol=1e-4, atol=1e-5)
    assert (left is mine["initial_state"]) == (tokens == 1), "for one token the state is changed where it lies"


@torch.inference_mode()
def test_heads_in_blocks_are_those_of_all_at_once(monkeypatch):
    inputs, options = given(1)
    whole = {**options, "initial_state": options["initial_state"].clone()}
    wanted, state = in_fewer_passes(OWN)(*inputs, **whole)
    monkeypatch.setattr(delta_rule, "BLOCK_BYTES", 5 * 4 * 8 * 6)  # five heads of twelve
    found, left = in_fewer_passes(OWN)(*inputs, **options)
    assert torch.equal(found, wanted) and torch.equal(left, state)


@pytest.mark.parametrize(("tokens", "piece"), [(1, 1), (16, 16), (64, 64), (80, 40), (129, 43)])
@torch.inference_mode()
def test_pieces_of_a_prompt_are_as_long_as_each_other(tokens, piece):
    inputs, options = given(tokens)
    sizes = []

    def rule(*given, **named):
        sizes.append(named["chunk_size"])
        return modeling_qwen3_5.torch_chunk_gated_delta_rule(*given, **named)

    found, left = in_equal_pieces(rule)(*inputs, **options)
    wanted, state = OWN(*inputs, **options)
    assert sizes == [piece]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(left, state, rtol=1e-3, atol=1e-4)


def test_it_is_put_in_place_once_and_where_the_model_looks(monkeypatch):
    model = make_model("qwen3-next")
    code = __import__(type(model).__module__, fromlist=["x"])
    monkeypatch.setattr(code, NAME, getattr(getattr(code, NAME), "__wrapped__", getattr(code, NAME)))
    install_fast_delta_rule(model)
    rule = getattr(code, NAME)
    install_fast_delta_rule(copy.deepcopy(model))
    assert rule.in_fewer_passes and getattr(code, NAME) is rule
