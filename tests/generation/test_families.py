"""Whole architectures beside `generate`: a dozen of every kind always, all of them in the long tests."""

import re
from pathlib import Path

import pytest
import torch

from agent_server.generation.loading import runner_choice
from agent_server.generation.loading.probe import UnpackableModel, fit
from benchmarks.families import BEGIN, END, ROWS, generate, measure, prompts, tied
from benchmarks.family_shapes import FAMILIES, make
from tests.generation.tiny_models import make_model

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
DOZEN = {
    "qwen3_5_text": "on its own cache",
    "qwen3_5_moe_text": "on its own cache",
    "nemotron_h": "on its own cache",
    "granitemoehybrid": "on its own cache",
    "falcon_h1": "on its own cache",
    "jamba": "on its own cache",
    "kimi_linear": "on its own cache",
    "mamba2": "on its own cache",
    "llama4_text": "on its own cache",
    "deepseek_v32": "on its own cache",
    "mpt": "on its own cache",
    "falcon": "on its own cache",
    "rwkv": "on its own cache",
    "recurrent_gemma": "on its own cache",
    "deepseek_v4": "on its own cache",
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def listed():
    """The rows of the page: family, path, identical."""
    text = PAGE.read_text("utf-8")
    table = text[text.index(BEGIN) : text.index(END)]
    return re.findall(rf"^\| (\S+) \| ([^|]+) \| (\d)/{ROWS} \|", table, re.MULTILINE)


@pytest.mark.parametrize("family", DOZEN)
def test_ids_are_those_of_generate(family):
    row = measure(family, new=8)
    assert (row.path, row.identical) == (DOZEN[family], ROWS), row


@pytest.mark.parametrize("family", ["afmoe", "qwen4_exp_text"])
def test_a_choice_by_scores_is_the_same_however_equal_ones_are_ordered(family, monkeypatch):
    """A GPU orders equal scores otherwise than a CPU, which is not to decide what a tiny model says."""
    model, topk = make(family), torch.Tensor.topk
    told = [generate(model, [prompt], 8) for prompt in prompts()]

    def backwards(scores, k, dim=-1, **options):
        values, indices = topk(scores.flip(dim), k, dim=dim, **options)
        return torch.return_types.topk((values, scores.shape[dim] - 1 - indices))

    monkeypatch.setattr(torch, "topk", backwards)
    monkeypatch.setattr(torch.Tensor, "topk", backwards)
    assert [generate(model, [prompt], 8) for prompt in prompts()] == told


@pytest.mark.parametrize("family", ["afmoe", "gemma2", "gpt_oss", "mixtral"])
def test_families_that_are_packed_can_do_with_their_own_caches(family, monkeypatch):
    def unfit(model):
        raise UnpackableModel("the test says so")

    monkeypatch.setattr(runner_choice, "fit", unfit)
    row = measure(family, new=8)
    assert (row.path, row.identical) == ("on its own cache", ROWS), row


def test_only_equally_likely_tokens_count_as_the_same():
    model = make_model("llama")
    logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    assert tied(model, [5, 6, 7], best, best) and not tied(model, [5, 6, 7], best, second)


def test_the_page_has_every_family_and_what_the_tests_hold():
    rows = {family: (path, int(same)) for family, path, same in listed()}
    assert rows.keys() == set(FAMILIES)
    assert {family: rows[family] for family in DOZEN} == {family: (path, ROWS) for family, path in DOZEN.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "path", "same"), listed())
def test_the_page_tells_what_is_measured(family, path, same):
    row = measure(family, new=16)
    assert (row.path, row.identical) == (path, int(same)), row


def test_the_test_of_a_model_computes_few_logits():
    """A vocabulary is a third of a small model's work, and every start waits for the test."""
    model, rows = make_model("llama"), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[-2]))
    fit(model)
    assert max(rows) <= 2, rows


@pytest.mark.parametrize(("window", "filled"), [(24, True), (512, False)])
def test_the_test_of_a_model_is_short_where_no_short_text_fills_its_window(window, filled):
    model, lengths = make_model("gemma2", sliding_window=window), []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: lengths.append(output.shape[-2]))
    fit(model)
    assert (max(lengths) > window) == filled and max(lengths) < 64, lengths
