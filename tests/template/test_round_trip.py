"""One description, read both ways: what the writer writes by an analysis, the parser reads by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from events.formats.output_format import OutputFormat
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallStart, ContentText, ReasoningText
from events.parsing.policy import Policy, declared_tools
from events.template.analyser import analyse
from events.template.writer import WrittenCall, write, writes_reasoning
from tests.template.folder import SHARED_TEMPLATES, own, own_names

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ("get_weather", "get_time")
]
CALLS = [
    WrittenCall("get_weather", {"city": "Trois-Rivières", "days": 3}, "call12345"),
    WrittenCall("get_time", {"city": "a < b", "exact": True}, "call67890"),
]
# Calls without an opening marker begin where content begins; behind words they are words.
BARE = {"bare_list", "llama_single", "loose_header", "meta-llama-Llama-3.1-8B-Instruct"}
BARE |= {"meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"}


def sources() -> list[Any]:
    paths = sorted(SHARED_TEMPLATES.glob("*.jinja")) if SHARED_TEMPLATES.is_dir() else []
    found = [(name, own(name)) for name in own_names()] + [(path.stem, path.read_text("utf-8")) for path in paths]
    return [pytest.param(name, source, id=name) for name, source in found]


def read(output_format: OutputFormat, text: str, opened: str, size: int) -> tuple[str, str, list[tuple[str, Any]]]:
    parser = Parser(output_format, Policy(tools=declared_tools(TOOLS)), opened=opened)
    pieces = [piece for start in range(0, len(text), size) for piece in parser.feed(text[start : start + size])]
    reasoning, content, calls = "", "", []
    for piece in [*pieces, *parser.finish()]:
        if isinstance(piece, ReasoningText):
            reasoning += piece.text
        elif isinstance(piece, ContentText):
            content += piece.text
        elif isinstance(piece, CallStart):
            calls.append([piece.name, ""])
        elif isinstance(piece, ArgumentText):
            calls[-1][1] += piece.text
    return reasoning.strip(), content.strip(), [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize(("name", "source"), sources())
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_is_written_is_read(name: str, source: str, size: int) -> None:
    found = analyse(source)
    described = found.output_format
    content = "" if name in BARE else "Here you are."
    calls = CALLS if described.tools else []
    text = write(described, reasoning="I think so.", content=content, calls=calls)
    reasons = writes_reasoning(described)
    expected = ("I think so." if reasons else "", content, [(call.name, dict(call.arguments)) for call in calls])
    assert read(described, text, found.message_start, size) == expected


def test_text_that_a_template_writes_behind_a_call_is_read() -> None:
    """The template is Gemma 4's, whose format by its name drops such text; a result would follow in the same turn."""
    found = analyse(own("quoted_objects"))
    text = '<|tool_call>call:get_time{city:<|"|>Brest<|"|>}<tool_call|>Here you are.<|tool_response>'
    for size in (1, 7, 10_000):
        expected = ("", "Here you are.", [("get_time", {"city": "Brest"})])
        assert read(found.output_format, text, found.message_start, size) == expected
    assert found.stops == ("<turn|>", "<|tool_response>")


@pytest.mark.parametrize(("name", "source"), sources())
def test_what_the_prompt_opened_is_reasoning(name: str, source: str) -> None:
    """Every generation prompt that ends in an open block: the output begins inside it."""
    found = analyse(source)
    described = found.output_format
    for prompt in found.prompts.values():
        if not described.reasoning or not described.reasoning.start:
            continue
        start, end = described.reasoning.start[0].strip(), described.reasoning.end[0].strip()
        opened = prompt.rfind(start) > prompt.rfind(end)
        text = f"So.{described.reasoning.end[0]}Yes." if opened else "Yes."
        assert read(described, text, prompt, 3) == ("So." if opened else "", "Yes.", [])


def test_a_call_that_the_template_writes_directly_behind_reasoning() -> None:
    """Each block begins with a marker and ends where the next one begins, so that only text ends reasoning by name."""
    found = analyse("""{% for m in messages %}
{%- if m.role == 'assistant' %}
  {%- if m.reasoning_content %}{{ '<|think|>\n' ~ m.reasoning_content ~ '\n' }}{% endif %}
  {%- if m.content %}{{ '<|out|>\n' ~ m.content ~ '\n' }}{% endif %}
  {%- for c in m.tool_calls or [] %}{{ '<|act|>\n' ~ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{% endfor %}<|eot|>
{% else %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '\n' }}{% endif %}
{%- endfor %}""")
    call = '<|act|>\n{"name": "get_time", "arguments": {"city": "Brest"}}\n'
    for size in (1, 7, 10_000):
        expected = ("So.", "", [("get_time", {"city": "Brest"})])
        assert read(found.output_format, f"<|think|>\nSo.\n{call}", found.message_start, size) == expected
        expected = ("So.", "Look.", [("get_time", {"city": "Brest"})])
        assert (
            read(found.output_format, f"<|think|>\nSo.\n<|out|>\nLook.\n{call}", found.message_start, size) == expected
        )


def test_a_tag_with_the_id_before_the_name() -> None:
    found = analyse("""{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content or '') }}
{%- for c in m.tool_calls or [] %}<call id="{{ c.id }}" name="{{ c.function.name }}">{{ c.function.arguments | tojson }}</call>
{%- endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""")
    text = '<call id="c1" name="get_time">{"city": "Brest"}</call><call id="c2" name="get_weather">{}</call>'
    for size in (1, 7, 10_000):
        expected = ("", "Look.", [("get_time", {"city": "Brest"}), ("get_weather", {})])
        assert read(found.output_format, f"Look.{text}", found.message_start, size) == expected
    calls = [WrittenCall("get_time", {"city": "Brest"}, "c1"), WrittenCall("get_weather", {}, "c2")]
    assert write(found.output_format, calls=calls) == text
