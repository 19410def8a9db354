"""The phrases that the bundled model is taught: their split, and whether what they say of the server is true."""

import ast
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agent_server.agents.demonstration import calculate
from agent_server.agents.server_tools import ToolFault
from training.demo_model import data_phrases
from training.demo_model.batches import encode
from training.demo_model.data_arithmetic import EQUATIONS, UNKNOWNS, equation, in_words, problem
from training.demo_model.data_comparisons import sorting, told_comparison
from training.demo_model.data_dialogues import DialogueFactory
from training.demo_model.data_everyday import everyday_request, everyday_tools
from training.demo_model.data_facts import declined, fact, world
from training.demo_model.data_languages import without_accents
from training.demo_model.data_messages import in_their_letters
from training.demo_model.data_packed import SHOWN_AFTER_THOUGHT, packed_talk, packed_tools
from training.demo_model.data_phrases import choose, draw, kept_apart, read_sections
from training.demo_model.data_requests import ASK
from training.demo_model.data_tools import argument_types, tool_name
from training.demo_model.data_values import Values, side_of
from training.demo_model.render import END, render

ROOT = Path(__file__).parents[2]
FILES = ("facts", "limits", "talk", "languages", "world", "statements", "turns")
ANSWERS = [section.answer for section in (*read_sections("facts"), *read_sections("talk_known"))]


def values(seed: str, held_out: bool = False) -> Values:
    return Values(random.Random(seed), held_out)


@pytest.mark.parametrize("name", FILES)
def test_training_spells_no_line_that_evaluation_asks(name):
    drawn = values(name)
    for section in read_sections(name):
        sides = [set(section.lines(side)) for side in (False, True)]
        assert all(sides) and not sides[0] & sides[1]
        assert not {draw(drawn, name, section)[0] for _ in range(30)} & kept_apart(name)


def test_a_choice_is_made_of_every_alternative_and_other_brackets_stay():
    drawn = values("choices")
    said = {choose(drawn, "say (a|b (c|d)|) f(x)") for _ in range(200)}
    assert said == {"say a f(x)", "say b c f(x)", "say b d f(x)", "say f(x)"}


def test_a_phrase_outside_of_a_section_is_refused(tmp_path, monkeypatch):
    (tmp_path / "stray.txt").write_text("hello\n[greeting]\nhi\n", encoding="utf-8")
    monkeypatch.setattr(data_phrases, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"stray\.txt: 'hello' stands before the first \[section\]"):
        read_sections("stray")


def test_flags_in_facts_are_options_of_the_command():
    source = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    source += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "agent_server" / "cli").rglob("*.py"))
    for flag in {flag for answer in ANSWERS for flag in re.findall(r"--([a-z-]+)", answer)}:
        assert re.search(rf"\b{flag.replace('-', '[-_]')}\b", source), flag


def test_files_in_facts_exist():
    named = {
        path for answer in ANSWERS for path in re.findall(r"(?:docs|examples|deploy)/[\w./-]+\w|[A-Z]+\.md", answer)
    }
    assert len(named) > 5
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("make", [fact, declined, world])
def test_an_exchange_has_a_thought_and_an_answer(make):
    drawn = values("exchanges")
    for _ in range(100):
        exchange = make(drawn)
        assert exchange.question and exchange.thought and exchange.carried == (exchange.answer,)


def test_accents_go_and_other_scripts_stay():
    assert without_accents("¿Cómo estás? Grüße, łza") == "¿Como estas? Grusse, lza"
    assert without_accents("Привет, й") == "Привет, й"


@pytest.mark.parametrize("held_out", [False, True])
def test_a_request_for_an_everyday_tool_says_every_value(held_out):
    drawn = values("everyday", held_out)
    for _ in range(300):
        tool, request = everyday_request(drawn)
        types = {"string": str, "integer": int, "number": float, "boolean": bool}
        kinds = argument_types(tool)
        assert request.tool == tool_name(tool) and list(request.arguments) == list(kinds)
        for key, value in request.arguments.items():
            assert type(value) is types[kinds[key]]
            shown = ("off", "on")[value] if isinstance(value, bool) else str(value)
            assert shown in request.question


def test_no_everyday_tool_is_on_both_sides():
    sides = [{name for tool in everyday_tools(side) for name in tool.names} for side in (False, True)]
    assert len(sides[0]) > 300 and len(sides[1]) > 40 and not sides[0] & sides[1]


def test_numbers_in_words():
    shown = {
        0: "zero",
        13: "thirteen",
        21: "twenty-one",
        90: "ninety",
        100: "one hundred",
        342: "three hundred and forty-two",
    }
    assert {number: in_words(number) for number in shown} == shown


def test_a_problem_s_expression_is_one_that_the_demonstration_calculates():
    drawn, done = values("problems"), 0
    for _ in range(300):
        _, expression, _ = problem(drawn)
        ast.parse(expression.replace("x", "*"), mode="eval")
        try:
            done += bool(calculate.call(expression=expression))
        except ToolFault:  # a division by zero, or a power that is too large
            continue
    assert done > 250


def test_training_asks_for_sums_as_people_type_them():
    drawn, shapes = values("plain"), Counter[str]()
    for _ in range(8000):
        shapes[re.sub(r"\d+", "1", ASK["calculate"](drawn).question)] += 1
    spelt = [f"1{gap}{sign}{gap}1" for sign in "*+-/x×" for gap in ("", " ")]
    forms = ("{}", "what is {}", "what's {}", "how much is {}", "{}=", "{}=?")
    assert [form for form in forms for text in spelt if shapes[form.format(text)] < 5] == []


@pytest.mark.parametrize("held_out", [False, True])
def test_an_equation_has_one_unknown_and_numbers_of_its_side(held_out):
    drawn = values("equations", held_out)
    for _ in range(300):
        asked = equation(drawn)
        letters = set(re.findall(r"(?<![a-z])[xyna](?![a-z])", asked.replace("what is", "")))
        assert len(letters) == 1 and re.search(r"=|\bis\b", asked) and "{" not in asked
    assert not set(side_of(EQUATIONS, True)) & set(side_of(EQUATIONS, False))
    assert not set(side_of(UNKNOWNS, True)) & set(side_of(UNKNOWNS, False))


def test_answers_about_clients_differ_in_what_a_cut_answer_shows():
    told = [section.answer for section in read_sections("facts") if "base_url" in section.answer]
    assert len(told) == 2 and len({answer[:SHOWN_AFTER_THOUGHT] for answer in told}) == 2


def test_equations_are_declined_and_sums_are_not():
    drawn = values("declined")
    asked = {exchange.question: exchange.answer for exchange in (declined(drawn) for _ in range(2000))}
    told = {answer for question, answer in asked.items() if re.search(r"[xyna] [+-] \d+ = ", question)}
    assert told == {"I cannot teach or solve that: I am only a tiny demo model."}


@pytest.mark.parametrize(
    ("kind", "least"), [("packed", 6), ("packed_turns", 5), ("packed_tools", 4), ("packed_compared", 6)]
)
@pytest.mark.parametrize("seed", range(6))
def test_packed_turns_are_learned_as_if_each_were_the_last_and_a_cut_ones_end_is_not(seed, kind, least):
    tokenizer = Tokenizer.from_file(str(ROOT / "agent_server" / "models" / "demo" / "tokenizer.json"))
    dialogue = DialogueFactory(f"packed-{seed}").make(kind)
    answers = [message for message in dialogue.messages if message["role"] == "assistant"]
    learned = [segment.text for segment in render(dialogue) if segment.target]
    assert len(learned) == len(answers) >= least and "shown" not in answers[-1]
    for message, text in zip(answers, learned, strict=True):
        assert ("<think>" in text) is dialogue.thinking
        assert text.endswith(END) is ("shown" not in message)
        said = text.removesuffix(END).split("</think>\n\n")[-1]
        assert message["content"].startswith(said) if "shown" in message else message["content"] in said
    assert sum(encode(tokenizer, dialogue).targets) == sum(len(tokenizer.encode(text).ids) for text in learned)


def test_a_cut_answer_shows_a_word_at_least():
    drawn = values("cut")
    rows = (packed_talk(drawn) for _ in range(200))
    cut = [answer for row in rows for answer in row.messages if "shown" in answer]
    assert len(cut) > 700 and all(" " in answer["content"][: answer["shown"]] for answer in cut)


@pytest.mark.parametrize("held_out", [False, True])
def test_told_temperatures_are_compared_as_numbers(held_out):
    drawn = values("told", held_out)
    for _ in range(300):
        exchange = told_comparison(drawn)
        told = re.match(r"It is (-?[\d.]+) in (.+) and (-?[\d.]+) in (.+?): ", exchange.answer)
        assert told and told[1] in exchange.question and told[4] in exchange.question
        low, high = sorted([(float(told[1]), told[1], told[2]), (float(told[3]), told[3], told[4])])
        verdict = exchange.answer[told.end() :]
        if low[0] == high[0]:
            assert verdict == "both are the same."
            continue
        colder = re.search("colder|cooler", exchange.question) is not None
        _, number, place = low if colder else high
        assert (
            verdict == f"{number} is {'less' if colder else 'more'}, so {place} is {'colder' if colder else 'warmer'}."
        )


@pytest.mark.parametrize("held_out", [False, True])
def test_numbers_are_put_in_order(held_out):
    drawn = values("sorted", held_out)
    for _ in range(300):
        exchange = sorting(drawn)
        asked = sorted(map(float, re.findall(r"-?\d+(?:\.\d+)?", exchange.question)))
        told = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", exchange.answer)]
        if exchange.answer.endswith("est."):
            assert told == [asked[-1 if "largest" in exchange.answer else 0]]
        else:
            assert told in (asked, asked[::-1])


def test_names_are_written_as_people_write_them():
    assert in_their_letters("how do i connect copilotkit to openai") == "how do I connect CopilotKit to OpenAI"
    assert in_their_letters("weather in linux and python", frozenset({"linux"})) == "weather in linux and Python"


def test_packed_requests_fit_the_tools_that_their_row_declares():
    drawn = values("packed tools")
    for _ in range(60):
        row = packed_tools(drawn)
        declared = {tool_name(tool): list(argument_types(tool)) for tool in row.tools}
        calls = [call["function"] for message in row.messages for call in message.get("tool_calls", ())]
        assert calls and all(list(call["arguments"]) == declared[call["name"]] for call in calls)
