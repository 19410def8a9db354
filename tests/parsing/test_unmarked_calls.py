"""Calls without their format's markers, as real models write them.

data/qwen_coder_answers.json: what Qwen2.5-Coder 1.5B (Q4_K_M, greedy) answered to questions of BFCL, with their tools.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from events.formats.registry import named
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ContentText
from events.parsing.policy import Policy, declared_tools
from tests.formats.reading import read, splits

ANSWERS = json.loads((Path(__file__).parent / "data" / "qwen_coder_answers.json").read_text())

HERMES = named("hermes")
WEATHER = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "scale": {"enum": ["C", "F"]}},
        "required": ["city"],
    }
}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
PARIS = [("get_weather", "", '{"city": "Paris"}')]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer["id"])
def test_real_answers_are_calls_where_they_fit_a_declared_tool(answer: dict[str, Any]):
    policy = Policy(tools=declared_tools(answer["tools"]))
    message = read(HERMES, [answer["content"]], policy)
    if answer["call"] is None:
        assert (message.content, message.calls) == (answer["content"], [])
    else:
        ((name, _, arguments),) = message.calls
        assert ({"name": name, "arguments": json.loads(arguments)}, message.content) == (answer["call"], "")
    for pieces in splits(answer["content"], 3):
        assert read(HERMES, pieces, policy) == message


@pytest.mark.parametrize(
    "answer", [each for each in ANSWERS if not each["content"].startswith("{")], ids=lambda answer: answer["id"]
)
@pytest.mark.parametrize("settings", [{"unmarked": "strict"}, {"tools": {}}])
def test_strict_reading_and_no_tools_leave_the_answer(answer: dict[str, Any], settings: dict[str, Any]):
    policy = Policy(**{"tools": declared_tools(answer["tools"]), **settings})
    assert read(HERMES, [answer["content"]], policy).content == answer["content"]


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{CALL}\n```",
        f"```\n[{CALL}]\n```",
        f"```json\n{CALL}",
        f"<tools>\n{CALL}\n</tools>",
        f"[TOOL_CALLS][{CALL}]",
        f"<|python_tag|>{CALL}",
        f"<function_call>{CALL}</function_call>",
        '```json\n{"type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}}\n```',
        '```json\n{"tool_calls": [' + CALL + "]}\n```",
        "{" + CALL + "}",
        "```json\n{" + CALL + "\n}\n```",
        '```json\n{"name": "get_weather", "arguments": {"city": "Paris", "scale": null}}\n```',
    ],
)
def test_blocks_that_are_calls(text: str):
    for pieces in [[text], *splits(text, 5)]:
        assert read(HERMES, pieces, Policy(tools=WEATHER)) == ("", "", PARIS)


OSLO = CALL.replace("Paris", "Oslo")
BOTH = [*PARIS, ("get_weather", "", '{"city": "Oslo"}')]


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{CALL}\n```\n\n```json\n{OSLO}\n```",
        f"```json\n{CALL}\n```\n```\n{OSLO}",
        f"<tools>\n{CALL}\n</tools>\n<tools>\n{OSLO}\n</tools>",
        f"```json\n{CALL}\n```\n<tools>{OSLO}</tools>",
        f"<tools>{CALL}</tools>\n```json\n{OSLO}\n```",
        f"{CALL}\n{OSLO}",
        "{" + CALL + "}\n{" + OSLO + "}",
        "{" + CALL + "}}\n{" + OSLO + "}}",
    ],
)
def test_blocks_directly_after_each_other_are_calls(text: str):
    for pieces in [[text], *splits(text, 5)]:
        assert read(HERMES, pieces, Policy(tools=WEATHER)) == ("", "", BOTH)


@pytest.mark.parametrize("text", [CALL, f"```json\n{CALL}\n```\n", f"```json\n{CALL}", f"```json\n[{CALL}]\n"])
def test_the_token_that_ends_a_message_ends_a_block(text: str):
    """A model may end its turn without closing the fence."""
    parser = Parser(HERMES, Policy(tools=WEATHER), marker_ids={"<|im_end|>": 7})
    pieces = parser.feed(text) + parser.feed("<|im_end|>", 7) + parser.finish()
    assert pieces == [CallStart("get_weather", ""), ArgumentText('{"city": "Paris"}'), CallEnd(True)]


@pytest.mark.parametrize(
    "text",
    [
        f"For example:\n```json\n{CALL}\n```\nasks for the weather.",
        '```json\n{"name": "get_weather", "arguments": {"city": 7}}\n```',
        '```json\n{"name": "get_weather", "arguments": {}}\n```',
        '```json\n{"name": "other", "arguments": {"city": "Paris"}}\n```',
        '```json\n{"city": "Paris", "name": "get_weather"}\n```',
        f"```python\nprint({CALL})\n```",
        f"```json\n{CALL}\n// and so on\n```",
        f"> ```json\n> {CALL}\n> ```",
        f"```json\n{CALL}\n```\n\nThis asks for the weather.",
        f"{CALL}\n\nThis asks for the weather.",
        f"```json\n{CALL}\n```\n\n```json\n{OSLO}\n```\n\nThese ask for the weather.",
        f"```json\n{CALL}\n```\n\n```python\nprint()\n```",
        f"[{CALL}] and more",
        '{"name": "get_weather", "arguments": {"city": 7}}',
        '{"name": "get_weather", "arguments": {}}',
        '{"name": "get_weather", "arguments": {"city": "Paris", "city',
        f"You would send:\n```json\n{CALL}\n```",
        f"The format is as follows.\n\n```json\n{CALL}\n```",
        f"I look at the map first.\n\nThen at the weather:\n```json\n{CALL}\n```",
        f"- I'll look that up:\n```json\n{CALL}\n```",
        f"I'll look that up: ```json {CALL} ```",
        f"I'll look that up:\n```json\n{CALL}\n```\nIs that right?",
        'I\'ll look that up:\n```json\n{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}\n```',
        '```json\n{"name": "get_weather", "arguments": {"city": null}}\n```',
        "{" + CALL,
        "{" + CALL + "} and more",
        "{{ name }}",
        "```",
        "```json\n",
    ],
)
def test_blocks_that_are_no_calls(text: str):
    for pieces in [[text], *splits(text, 5)]:
        assert read(HERMES, pieces, Policy(tools=WEATHER)) == ("", text, [])


@pytest.mark.parametrize(
    "text", [CALL, f"[{CALL}]", f"\n{CALL}\n", '{"arguments": {"city": "Paris"}, "name": "get_weather"}']
)
def test_bare_json_that_ends_the_message_is_a_call(text: str):
    for pieces in [[text], *splits(text, 5)]:
        assert read(HERMES, pieces, Policy(tools=WEATHER)) == ("", "", PARIS)


@pytest.mark.parametrize("before", ["I'll look that up:\n", "Let me check the weather in Paris.\n\n"])
def test_a_fence_behind_text_that_announces_a_call_is_one(before: str):
    text = f"{before}```json\n{CALL}\n```\n"
    for pieces in [[text], *splits(text, 5)]:
        message = read(HERMES, pieces, Policy(tools=WEATHER))
        assert (message.content.strip(), message.calls) == (before.strip(), PARIS)
        strict = read(HERMES, pieces, Policy(tools=WEATHER, unmarked="strict"))
        assert (strict.content.strip(), strict.calls) == (text.strip(), [])


@pytest.mark.parametrize("opening", ["[", "{", "[{", "```json\n["])
def test_brackets_without_a_key_are_not_held_back(opening: str):
    """Until the end a megabyte of them was held, and then read at once."""
    parser = Parser(HERMES, Policy(tools=WEATHER))
    pieces = [piece for _ in range(20) for piece in parser.feed(opening * 50, None)]
    assert len("".join(piece.text for piece in pieces if isinstance(piece, ContentText))) > 400


def test_a_whole_number_beyond_a_double_fits_an_integer():
    tools = {"count": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    call = f'{{"name": "count", "arguments": {{"n": {10**400}}}}}'
    message = read(HERMES, [f"```json\n{call}\n```"], Policy(tools=tools))
    assert message.calls == [("count", "", f'{{"n": {10**400}}}')]
