"""One query for each sequence is attended as transformers attends it."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agent_server.generation.attention.attention import SDPA, install_single_query_attention, with_single_queries
from tests.generation.harness import transformers_own
from tests.generation.tiny_models import make_model


class Layer(torch.nn.Module):
    is_causal = True

    def __init__(self, groups):
        super().__init__()
        self.num_key_value_groups = groups


def refuse(*arguments, **options):
    raise AssertionError("transformers' own function is called")


def sdpa():
    attend = ALL_ATTENTION_FUNCTIONS[SDPA]
    return getattr(attend, "__wrapped__", attend)


def given(groups, tokens=1, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(groups)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return draw(3, 2 * groups, tokens, 16), draw(3, 2, 9, 16), draw(3, 2, 9, 16)


MASKS = {
    "none": None,
    "rows": (torch.arange(9) >= torch.tensor([[0], [4], [7]]))[:, None, None],
    "scores": torch.zeros(3, 1, 1, 9).masked_fill(torch.arange(9) < torch.tensor([2]), -1e4).bfloat16(),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("groups", [1, 4])
@torch.inference_mode()
def test_outputs_are_those_of_sdpa(groups, mask):
    query, key, value = given(groups)
    wanted, _ = sdpa()(Layer(groups), query, key, value, MASKS[mask], scaling=0.3)
    found, _ = with_single_queries(refuse)(Layer(groups), query, key, value, MASKS[mask], scaling=0.3)
    assert found.shape == wanted.shape == (3, 1, 2 * groups, 16)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.01)


@pytest.mark.parametrize(
    "given_, mask, options",
    [
        (given(1, tokens=2), None, {}),
        (given(1, dtype=torch.float32), None, {}),
        (given(1), torch.ones(3, 2, 1, 9, dtype=torch.bool), {}),
        (given(1), None, {"position_bias": torch.zeros(3, 2, 1, 9).bfloat16()}),
    ],
    ids=["chunk", "float32", "mask for each head", "bias"],
)
def test_anything_else_is_left_to_transformers(given_, mask, options):
    with pytest.raises(AssertionError):
        with_single_queries(refuse)(Layer(1), *given_, mask, **options)


def test_it_is_put_in_place_once_for_16_bits_and_taken_out_for_references(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, SDPA, sdpa())
    model = make_model("llama")
    install_single_query_attention(model)
    assert ALL_ATTENTION_FUNCTIONS[SDPA] is sdpa()
    install_single_query_attention(model.bfloat16())
    put = ALL_ATTENTION_FUNCTIONS[SDPA]
    install_single_query_attention(model)
    assert put.with_single_queries and ALL_ATTENTION_FUNCTIONS[SDPA] is put
    with transformers_own(model):
        assert ALL_ATTENTION_FUNCTIONS[SDPA] is sdpa()
    assert ALL_ATTENTION_FUNCTIONS[SDPA] is put
