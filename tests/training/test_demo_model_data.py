"""What the bundled model is taught: the server's own words, edited plans, typos, unseen tools, long conversations."""

import random
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from agent_server.agents import interrupts
from agent_server.agents.demonstration import NOTES
from agent_server.agents.running import failure
from training.demo_model import data_results
from training.demo_model.batches import LONGEST, encode
from training.demo_model.data_conversations import Conversation, follow_up_kinds
from training.demo_model.data_dialogues import DialogueFactory, demo_toolset
from training.demo_model.data_phrases import read_sections
from training.demo_model.data_requests import ASK
from training.demo_model.data_results import denial_outcome, failure_outcome, plan_outcome
from training.demo_model.data_tools import PAGE_TOOLSETS, define, tool_name
from training.demo_model.data_typos import mistyped
from training.demo_model.data_unseen import unseen_request
from training.demo_model.data_values import Values, side_of
from training.demo_model.evaluate import Verdict, expected_calls, is_right, table
from training.demo_model.grow import grow_from, places_of
from training.demo_model.model import Shape, TinyLlama, random_weights
from training.demo_model.render import Dialogue, render

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "agent_server" / "models" / "demo"
SMALL = Shape(40, width=32, layers=2, head_width=16, inner_width=24)
PHRASES = tuple(phrase for section in read_sections("languages") for phrase in section.whole)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def values(seed: str, held_out: bool = False) -> Values:
    return Values(random.Random(seed), held_out)


def test_refusals_are_the_server_s_own_words():
    assert data_results.REFUSED == interrupts.DENIED
    assert data_results.LATE == interrupts.EXPIRED
    assert data_results.UNKNOWN == interrupts.UNKNOWN


def test_failures_are_told_in_the_server_s_words():
    drawn = values("failures")
    told = {failure_outcome(drawn, ASK["search"](drawn)).content for _ in range(400)}
    assert failure("search took longer than 60 s.").content in told
    assert failure("unknown location").content in told


def test_the_notes_of_the_demonstration_are_among_the_results():
    assert set(data_results.NOTES) <= {f"{title}: {text}" for title, text in NOTES}


def test_the_page_s_tools_are_those_of_the_demonstration():
    from agent_server.agents.demonstration import demonstration_agents

    _, demo = demonstration_agents()
    assert tuple(tool.name for tool in demo.tools) == PAGE_TOOLSETS[0][:-2]


@pytest.mark.parametrize("path", ["/copilotkit", "/v1", "/agui"])
def test_facts_are_those_of_the_readme(path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"http://localhost:8000{path}" in readme
    assert any(f"the server's address with {path} behind it" in section.answer for section in read_sections("facts"))


def test_no_fact_names_the_port_that_the_server_may_not_have():
    assert [
        section.answer for section in read_sections("facts") if re.search(r"localhost:8000|port 8000", section.answer)
    ] == []


def test_a_refused_call_is_never_said_to_be_made():
    drawn = values("denials", held_out=True)
    for name in ASK:
        for _ in range(30):
            outcome = denial_outcome(drawn, ASK[name](drawn))
            assert outcome.answer.startswith(
                ("Okay, I did not", "No answer came in time, so I did not", "I do not know")
            )


def test_an_edited_plan_names_and_counts_what_was_kept_and_forbids_the_rest():
    drawn, dropped = values("plans"), 0
    for _ in range(300):
        request = ASK["generate_task_steps"](drawn)
        outcome = plan_outcome(drawn, request)
        assert all(value in outcome.answer for value in outcome.carried)
        assert not any(value in outcome.answer for value in outcome.forbidden)
        dropped += bool(outcome.forbidden)
    assert dropped > 100


def test_an_answer_with_a_dropped_step_is_wrong():
    messages = [{"role": "user", "content": "plan"}, {"role": "assistant", "content": "1. Rest"}]
    dialogue = Dialogue("plan_answer", messages, [], False, ("Rest",), ("Pack",))
    assert is_right(dialogue, "1. Rest")
    assert not is_right(dialogue, "1. Pack, 2. Rest")


def test_typos_change_the_question_and_leave_its_values():
    drawn = values("typos")
    for _ in range(300):
        typed = mistyped(drawn, "please tell me the weather in Bremen", frozenset({"bremen"}))
        assert typed != "please tell me the weather in Bremen" and typed.endswith(" Bremen")
    assert mistyped(drawn, "to be 12 * 7", frozenset()) == "to be 12 * 7"


@pytest.mark.parametrize("phrases", [PHRASES, ("one", "two"), ("a", "b", "c")])
def test_a_phrase_is_on_one_side_and_no_side_is_empty(phrases):
    known, held_out = side_of(phrases, False), side_of(phrases, True)
    assert known and held_out and set(known) | set(held_out) == set(phrases) and not set(known) & set(held_out)


def test_a_request_for_an_unseen_tool_fits_its_schema():
    drawn = values("unseen")
    for _ in range(200):
        tool, request = unseen_request(drawn)
        kinds = {name: schema["type"] for name, schema in tool["function"]["parameters"]["properties"].items()}
        types = {"string": str, "integer": int, "number": float, "boolean": bool}
        assert request.tool == tool_name(tool) and list(request.arguments) == list(kinds)
        assert all(type(value) is types[kinds[name]] for name, value in request.arguments.items())


@pytest.mark.parametrize("kind", sorted(set(follow_up_kinds(demo_toolset()))))
def test_a_follow_up_s_values_were_said_before(kind):
    for seed in range(20):
        talk = Conversation(values(f"{kind}-{seed}"), demo_toolset())
        said = str(talk.prepare(kind))
        turn = talk.turn(kind)
        assert said or kind in ("ask_back", "recall")
        last = str(turn.messages[-1].get("content"))
        assert all(value in last for value in turn.carried)
        if kind in ("compare", "other", "again", "recall"):
            numbers = [value for value in turn.carried if value.lstrip("-").replace(".", "").isdigit()]
            assert all(number in said for number in numbers)


def test_without_tools_no_follow_up_calls_one():
    assert follow_up_kinds([define("paint", {})]) == ["recall"]


def test_a_long_conversation_fits_into_the_context(tokenizer):
    factory = DialogueFactory("long")
    lengths = [len(encode(tokenizer, factory.make("long")).tokens) for _ in range(40)]
    assert max(lengths) > 2500 and sum(length <= LONGEST for length in lengths) > 35


def test_a_conversation_of_twenty_turns_has_twenty_questions():
    dialogue = DialogueFactory("turns", held_out=True).make_turns(20)
    assert sum(message["role"] == "user" for message in dialogue.messages) == 20


def test_earlier_answers_are_learned_but_for_their_first_token(tokenizer):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello you."}]
    dialogue = Dialogue("chat", [*messages, *messages], [], True)
    row = encode(tokenizer, dialogue)
    [first, *_] = [segment for segment in render(dialogue) if segment.past]
    ids = tokenizer.encode(first.text).ids
    start = next(i for i in range(len(row.tokens)) if row.tokens[i : i + len(ids)] == ids)
    assert row.targets[start : start + len(ids)] == [False] + [True] * (len(ids) - 1)


def test_a_grown_model_computes_what_the_small_one_did(tmp_path):
    from safetensors.torch import save_file

    small = TinyLlama(SMALL)
    random_weights(small, torch.Generator().manual_seed(1))
    save_file({f"model.{name}": weight for name, weight in small.state_dict().items()}, tmp_path / "model.safetensors")
    large = TinyLlama(Shape(40, width=32, layers=5, head_width=16, inner_width=40))
    random_weights(large, torch.Generator().manual_seed(2))
    grow_from(large, tmp_path)
    tokens = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert torch.allclose(small.logits(small(tokens)), large.logits(large(tokens)), atol=1e-5)
    with pytest.raises(ValueError, match="does not fit"):
        grow_from(TinyLlama(Shape(40, width=32, layers=2, head_width=16, inner_width=8)), tmp_path)


def test_layers_keep_their_order_and_a_model_cannot_shrink():
    assert places_of(4, 6) == [0, 2, 3, 5]
    with pytest.raises(ValueError, match="cannot grow"):
        places_of(4, 2)


@pytest.mark.parametrize(
    ("text", "ended", "degenerate"),
    [
        ("In Oslo it is 3 degrees.", True, False),
        ("kept in SQL in SQL in SQL in SQL", True, True),
        ("In Oslo", False, True),
        ("", True, True),
    ],
)
def test_loops_and_answers_without_an_end_are_degenerate(text, ended, degenerate):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]
    verdict = Verdict("chat", Dialogue("chat", messages, [], False), text, True, ended, 10)
    assert verdict.degenerate is degenerate
    assert "**not degenerate**" in table([verdict])


def test_what_the_user_said_over_and_over_may_be_repeated():
    messages = [{"role": "user", "content": "repeat: hello hello hello"}, {"role": "assistant", "content": "x"}]
    assert not Verdict("repeat", Dialogue("repeat", messages, [], False), "hello hello hello", True, True, 9).degenerate


def test_expected_calls_of_a_comparison_name_both_places():
    factory = DialogueFactory("pairs")
    made = [expected_calls(factory.make("compare_pair").messages[-1]) for _ in range(30)]
    assert any(len(calls) == 2 and len({str(call) for call in calls}) == 2 for calls in made)
