"""Random logits through the real sampler and the real parser: a sample of what `python -m tests.grammar.walks` does."""

import contextlib
import json
import re
from random import Random

import jsonschema
import pytest
import torch

from agent_server.generation.sampling.masks import Masks
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.models.prompting.validation import FORMATS as CHECKED_FORMATS
from events.formats import registry
from events.grammar import Function, Stage
from events.options import SamplingParams, ToolChoice
from tests.grammar.toolsets import tool_set
from tests.grammar.vocabulary import END
from tests.grammar.walks import KINDS, Tally, _matchers, generate, judge, read, tally_of, walk, walker

FORMATS = sorted(set(KINDS.values()))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_clean(tally: Tally, calls: bool = True) -> None:
    assert not tally.problems, "\n".join(tally.examples)
    assert tally.runs > tally.unfinished
    assert tally.calls or not calls


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_must_be_made_is_always_right(name):
    stage: Stage = "start" if registry.named(name).channels else "content"
    assert_clean(tally_of(name, sets=6, runs=2, choice=ToolChoice("required"), stage=stage))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2", "openai"])
def test_a_random_model_through_the_whole_engine(name):
    """Its own logits, in mixed batches, masks filled beside the forward."""
    stage: Stage = "start" if registry.named(name).channels else "content"
    assert_clean(generate(name, sets=8, runs=2, choice=ToolChoice("required"), stage=stage))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_runs_of_a_random_model_through_the_whole_engine(name):
    stage: Stage = "start" if registry.named(name).channels else "content"
    assert_clean(generate(name, sets=50, runs=20, choice=ToolChoice("required"), stage=stage))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "lfm2", "gemma4", "deepseek_v32"])
def test_markers_that_are_text_are_held_to_as_well(name):
    assert_clean(tally_of(name, sets=4, runs=2, tokens=False, choice=ToolChoice("required"), stage="content"))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_a_sentencepiece_vocabulary(name):
    assert_clean(tally_of(name, sets=4, runs=2, fallback=True, choice=ToolChoice("required"), stage="content"))


@pytest.mark.parametrize("stage", ["start", "reasoning", "content"])
@pytest.mark.parametrize("tokens", [True, False])
def test_calls_after_reasoning_and_text_that_are_free(stage, tokens):
    tallies = [tally_of(n, sets=6, runs=2, tokens=tokens, choice=ToolChoice("auto"), stage=stage)
               for n in ("hermes", "glm45")]  # fmt: skip
    for tally in tallies:
        assert_clean(tally, calls=False)
    assert not tokens or sum(tally.calls for tally in tallies)


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize(
    "name", ["hermes", "jamba", "deepseek_v3", "qwen3_coder", "glm45", "deepseek_v32", "lfm2", "gemma4"]
)
def test_from_its_marker_on_a_call_is_held_to(name, tokens):
    """Free text, then the marker, wherever the tokens fall: what follows is a legal call."""
    tools = registry.named(name).tools
    begin = "I will see to it. < " + (tools.section_start or tools.call_start).strip()
    tally, walking = Tally(), walker(name, tokens=tokens)
    for seed in range(4):
        functions = tool_set(Random(seed))
        asked = {"choice": ToolChoice("auto"), "stage": "content", "begin": begin}
        for output in walk(walking, functions, seed, 2, **asked):
            judge(tally, walking, functions, output, **asked)
    assert_clean(tally)
    assert tally.calls >= tally.runs - tally.unfinished


def test_a_list_in_a_fence_is_held_to():
    """A call that must be made, by a model that prefers a code fence to the markers."""
    tally, walking = Tally(), walker("hermes")
    for seed in range(8):
        functions = tool_set(Random(seed))
        for output in walk(walking, functions, seed, 2, begin="```json\n["):
            judge(tally, walking, functions, output)
    assert_clean(tally)


def test_the_list_that_takes_the_place_of_one_call_is_held_to():
    """What follows it is free, so that it may still be an example."""
    walking, begin, lists = walker("hermes"), "```json\n[", 0
    for seed in range(8):
        functions = tool_set(Random(seed))
        schemas = {function.name: function.schema for function in functions}
        for ids, _ in walk(walking, functions, seed, 2, choice=ToolChoice("auto"), begin=begin, call_list=True):
            text = walking.tokenizer.decode(ids, skip_special_tokens=False)
            with contextlib.suppress(json.JSONDecodeError):  # cut off
                calls, _ = json.JSONDecoder().raw_decode(text.removeprefix("```json\n"))
                for call in calls:
                    jsonschema.validate(call["arguments"], schemas[call["name"]], format_checker=CHECKED_FORMATS)
                lists += 1
    assert lists > 8


def test_reasoning_comes_before_a_call_that_must_be_made():
    walking, functions = walker("hermes"), tool_set(Random(3))
    tally = Tally()
    for output in walk(walking, functions, 3, 6, choice=ToolChoice("required"), stage="reasoning"):
        assert walking.ids["</think>"] in output[0]
        judge(tally, walking, functions, output, choice=ToolChoice("required"), stage="reasoning")
    assert_clean(tally)


def test_one_call_where_no_second_is_wanted():
    walking, functions = walker("hermes"), tool_set(Random(5))
    for ids, ended in walk(walking, functions, 5, 8, choice=ToolChoice("required"), parallel=False):
        assert ended and ids.count(walking.ids["<tool_call>"]) == 1


@pytest.mark.parametrize("name", [name for name in FORMATS if not registry.named(name).channels])
def test_a_model_may_end_behind_the_line_break_that_follows_a_call(name):
    """Qwen2.5-Coder writes one behind every call and decides only then whether it goes on."""
    walking, functions = walker(name), tool_set(Random(5))
    (ids, _), *_ = [
        one for one in walk(walking, functions, 5, 8, choice=ToolChoice("required"), parallel=False) if one[1]
    ]
    (matcher,), _ = _matchers(walking, functions, 1, choice=ToolChoice("required"))
    ids = [number for number in ids if number != walking.ids[END]]
    for token in [*ids, *walking.tokenizer.encode("\n", add_special_tokens=False).ids]:
        assert matcher.accept(token)
    masks = torch.full((1, -(-walking.nudge.shape[0] // 32)), -1, dtype=torch.int32)
    walking.backend.fill([matcher], masks)
    assert masks[0, walking.ids[END] // 32] >> (walking.ids[END] % 32) & 1


def test_a_tool_that_is_named_is_the_one_that_is_called():
    walking, functions = walker("qwen3_coder"), tool_set(Random(8), count=5)
    choice = ToolChoice("named", (functions[2].name,))
    for ids, _ in walk(walking, functions, 8, 4, choice=choice):
        assert f"<function={functions[2].name}>" in walking.tokenizer.decode(ids, skip_special_tokens=False)


def test_neighbours_without_a_grammar_get_the_tokens_they_get_alone():
    """Four rows, two of them bound: the free ones draw what they draw without any mask in the batch."""
    walking, functions = walker("hermes"), tool_set(Random(2))
    size = walking.nudge.shape[0]
    alone, mixed = [], []
    for bound, drawn in ((False, alone), (True, mixed)):
        matchers, _ = _matchers(walking, functions, 2, choice=ToolChoice("required"))
        sampler = Sampler(4, size, torch.device("cpu"))
        for row in range(4):
            sampler.set(row, row, RowSampling(SamplingParams(temperature=1.0), row), [], [])
        generator = torch.Generator().manual_seed(1)
        for position in range(60):
            logits = torch.randn(4, size, generator=generator) + walking.nudge
            masks = None
            if bound and not any(matcher.finished for matcher in matchers):
                bits = torch.full((2, -(-size // 32)), -1, dtype=torch.int32)
                walking.backend.fill(matchers, bits)
                masks = Masks(bits, [1, 3])
            tokens = sampler.sample(logits, [0, 1, 2, 3], [position] * 4, masks).tokens.tolist()
            if masks is not None and all(token not in walking.backend.ends for token in (tokens[1], tokens[3])):
                assert matchers[0].accept(tokens[1]) and matchers[1].accept(tokens[3])
            drawn.append((tokens[0], tokens[2]))
    assert alone == mixed


TEXT = re.compile(r'"say"(\n[a-z"\\\n]{1,6})+\)', re.DOTALL)
GRAMMAR = r"""
start: "\"say\"" (LF /[a-z"\\\n]{1,6}/)+ ")"
%import common.LF
"""


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_the_text_of_a_custom_tool_is_held_to_its_grammar(name):
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    functions = [Function("patch", text, GRAMMAR)]
    stage: Stage = "start" if registry.named(name).channels else "content"
    asked = {"choice": ToolChoice("required"), "stage": stage, "parallel": False}
    walking = walker(name)
    if registry.named(name).tools.arguments.style in ("python", "object", "nested"):
        with pytest.raises(ValueError, match="no place for a grammar"):
            walk(walking, functions, 1, 1, **asked)
        return
    ended = [ids for ids, ended in walk(walking, functions, 1, 4, **asked) if ended]
    assert ended
    for ids in ended:
        [(called, arguments)], _ = read(walking, functions, ids, stage)
        assert called == "patch" and TEXT.fullmatch(json.loads(arguments)["input"]), arguments
