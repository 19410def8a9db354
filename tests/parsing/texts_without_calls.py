"""Texts with JSON in them that are no calls.

data/no_calls.jsonl: sections of READMEs and docstrings of packages, and answers of Qwen2.5-Coder 0.5B and 1.5B (Q4_K_M,
greedy); each with its source, and the names that it gives to something, which are declared as tools that take anything.
data/json_in_documentation.jsonl: the words around a fence with JSON in the documentation of npm packages, Node and
programs, which no rule was tuned on: as they are, and with a call that fits a declared tool in the place of their JSON.
The rest is made: sentences around a call that fits a declared tool.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

WEATHER: Mapping[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]
}  # fmt: skip
_CALLS = (
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]',
    '{"tool_calls": [{"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}]}',
)
_AROUND = (
    "For example:\n```json\n{}\n```\n",
    "You could call it like this:\n```json\n{}\n```",
    "The previous call was:\n```\n{}\n```",
    "Your message contains\n```json\n{}\n```\nand nothing else.",
    "```json\n{}\n```\nThis is what a call looks like.",
    "1. Ask for the weather:\n```json\n{}\n```",
    "# Format\n```json\n{}\n```",
    "> {}",
    "A call is written `{}`.",
    "Did you mean\n```json\n{}\n```",
    "It failed with 400:\n```json\n{}\n```",
    "The model answers {} and stops.",
    "```python\ncall = {}\n```",
    "log: {}",
    "{}\nis the JSON of a call.",
    "<pre>\n{}\n</pre>",
)


_DATA = Path(__file__).parent / "data"
_FENCE = re.compile(r"(```json[^\n]*\n).*?(\n[ \t]*```)", re.DOTALL)


class Text(NamedTuple):
    source: str
    text: str
    tools: dict[str, Any]


def real_texts() -> list[Text]:
    rows = map(json.loads, (_DATA / "no_calls.jsonl").read_text("utf-8").splitlines())
    return [
        Text(row["source"], row["text"], {"get_weather": WEATHER} | {name: {"type": "object"} for name in row["tools"]})
        for row in rows
    ]


def documentation() -> list[Text]:
    rows = map(json.loads, (_DATA / "json_in_documentation.jsonl").read_text("utf-8").splitlines())
    texts: list[Text] = []
    for row in rows:
        tools = {"get_weather": WEATHER} | {name: {"type": "object"} for name in row["tools"]}
        called = _FENCE.sub(lambda fence: fence[1] + _CALLS[0] + fence[2], row["text"], count=1)
        texts += [Text(row["source"], row["text"], tools), Text(f"{row['source']}, a call", called, tools)]
    return texts


def made_texts() -> list[Text]:
    return [
        Text("made", around.replace("{}", call, 1), {"get_weather": WEATHER})
        for around, call in itertools.product(_AROUND, _CALLS)
    ]


TEXTS = real_texts() + made_texts()
UNTUNED = documentation()
