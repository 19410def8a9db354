"""Openings of public data sets: how their files are read, and how an answer is judged."""

import json

import pytest

from training.demo_model.openings import judge, openings, report, sample

REFUSAL = "I cannot write code: I am only a tiny demo model."


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yml", "conversations:\n- - Hello there\n  - Hi\n- - What is tea\n  - A drink\n"),
        ("a.jsonl", '{"turns": ["Hello there", "and now?"]}\n{"prompt": "What is tea"}\n'),
        ("a.json", '[{"instruction": "Hello there"}, {"question": "What is tea"}]'),
    ],
)
def test_the_first_words_of_each_conversation_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(openings(tmp_path / name)) == ["Hello there", "What is tea"]


def test_a_sample_is_the_same_for_a_seed_and_has_no_opening_twice(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"prompt": text} for text in ("a", "b", "c", "d", "a", "x" * 1000)]), encoding="utf-8")
    assert sample([path], 3, 1) == sample([path], 3, 1)
    assert sorted(sample([path], 9, 1)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("opening", "text", "verdict"),
    [
        ("weather in Lyon?", call("get_weather", location="Lyon"), "right"),
        ("a closure in Python", call("get_weather", location="Python"), "wrong"),
        ("weather in Lyon?", call("get_weather", location="Oslo"), "wrong"),
        ("what is 12*7?", call("calculate", expression="12*7"), "right"),
        ("Who was Nero?", call("search", query="Nero"), "wrong"),
        ("weather in Lyon?", "<tool_call>\n{", "wrong"),
        ("write a loop", REFUSAL, "refusal"),
        ("What is tea", "I am only a tiny demo model and know nothing about tea. A real model will.", "refusal"),
        ("What is tea", "I am only a tiny demo model and know nothing about teea. A real model will.", "unread"),
        ("Hello there", "Hello, nice to see you! What would you like to try?", "unread"),
    ],
)
def test_what_can_be_decided_by_rule_is(opening, text, verdict):
    assert judge(opening, text, {}).verdict == verdict


def test_a_person_s_verdict_is_of_one_opening_and_one_answer():
    asked = judge("Hello there", "Hello!", {})
    read = {asked.key: "right"}
    assert judge("Hello there", "Hello!", read).verdict == "right"
    assert judge("Goodbye", "Hello!", read).verdict == "unread"


def test_what_nobody_read_counts_as_wrong_and_is_listed():
    answers = [judge("weather in Lyon?", call("get_weather", location="Lyon"), {}), judge("tea", "Hello!", {})]
    text = report([*answers, judge("a closure in Python", call("get_weather", location="Python"), {})], 0.0)
    assert "'tea'" in text and "'a closure in Python'" in text and "weather in Lyon" not in text
    assert "| wrong | 2 | 66.7 % |" in text and "| of these, words taken for a place | 1 | 33.3 % |" in text
