"""A format's markers are declared on its fields, once: no reader or writer of a format can forget one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from events.formats import output_format as descriptions
from events.formats.fields import Marker, text_fields, texts
from events.formats.output_format import (
    Arguments,
    ArgumentStyle,
    CallId,
    Content,
    Description,
    IdPosition,
    OutputFormat,
    Reasoning,
    Tools,
    marker_ids,
    markers,
)
from events.formats.registry import named
from events.grammar import plan
from events.grammar.call_nodes import CallWriter, Function
from events.grammar.nodes import Alphabet
from events.options import ToolChoice
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallStart, ContentText
from events.parsing.policy import Policy
from events.template.writer import WrittenCall, write

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
ARGUMENTS = {"a": "x", "b": "y"}
CALLS = (WrittenCall("first", ARGUMENTS, "id1"), WrittenCall("second", ARGUMENTS, "id2"))
STYLES: tuple[ArgumentStyle, ...] = get_args(ArgumentStyle)
POSITIONS: tuple[IdPosition, ...] = ("none", "before_name", "between", "after_arguments")


def subclasses() -> Iterator[type[Description]]:
    for value in vars(descriptions).values():
        if isinstance(value, type) and issubclass(value, Description) and value is not Description:
            yield value


@pytest.mark.parametrize("description", list(subclasses()))
def test_every_text_field_says_whether_it_holds_markers(description: type[Description]):
    undeclared = [field.name for field in text_fields(description) if field.declared is None]
    assert not undeclared, "annotate the fields as markers or as words (events.formats.output_format)"


def test_an_undeclared_field_is_seen():
    made = msgspec.defstruct("Made", [("a", str), ("b", tuple[str, ...] | None), ("c", bool)])
    assert [(field.name, field.declared) for field in text_fields(made)] == [("a", None), ("b", None)]


def marked(description: type[Description], **others: Any) -> Any:
    """A description in which every marker of a call is a token of its own, named after its field."""
    values = {
        field.name: f"<|{description.__name__}.{field.name}|>"
        for field in text_fields(description)
        if isinstance(field.declared, Marker) and field.declared.part == "calls"
    }
    return description(**{**values, **others})


def marked_format(style: ArgumentStyle, position: IdPosition) -> OutputFormat:
    """Calls of Python's and objects have brackets and commas where others have markers, nested elements stand beside
    each other."""
    brackets = {"python": "()", "object": "{}"}.get(style, "")
    fixed = {"start": "", "end": brackets[1], "separator": ","} if brackets else {}
    fixed |= {"separator": ""} if style == "nested" else {}
    fixed |= {"quote": ""} if style == "python" else {}
    arguments = marked(Arguments, style=style, **fixed)
    name_suffix = brackets[:1] or "<|Tools.name_suffix|>"
    call_id = marked(CallId, position=position) if position != "none" else CallId()
    tools = marked(Tools, style="tag", arguments=arguments, id=call_id, name_suffix=name_suffix)
    return OutputFormat(tools=tools)


FORMATS = [(style, position, marked_format(style, position)) for style in STYLES for position in POSITIONS]
EACH_FORMAT = pytest.mark.parametrize(
    "output_format", [pytest.param(made, id=f"{style}-{position}") for style, position, made in FORMATS]
)
FIELDS = [
    f"<|{description.__name__}.{field.name}|>"
    for description in (Tools, Arguments, CallId)
    for field in text_fields(description)
    if isinstance(field.declared, Marker)
]


def constants(node: Any) -> str:
    """All text that a grammar's nodes hold."""
    if isinstance(node, dict):
        return "".join(constants(value) for key, value in node.items() if key != "json_schema")
    return "".join(map(constants, node)) if isinstance(node, list) else str(node)


@pytest.mark.parametrize("marker", FIELDS)
def test_every_marker_of_calls_is_written_as_text_and_as_grammar(marker: str):
    """In some style: not every style has every marker."""
    assert any(marker in write(made, calls=CALLS) for _, _, made in FORMATS)
    functions = [Function("first", SCHEMA)]
    grammars = [
        CallWriter(made.tools, Alphabet({})).section(functions, parallel=True) for _, _, made in FORMATS if made.tools
    ]
    assert any(marker in constants(grammar) for grammar in grammars)


def read_tokens(output_format: OutputFormat, text: str, control: dict[str, int], *, as_tokens: bool) -> list[Any]:
    """The pieces of a text whose markers come as tokens, or as text that spells them."""
    parser = Parser(output_format, Policy(bare="never"), marker_ids=marker_ids(output_format, control))
    if not as_tokens:
        return parser.feed(text) + parser.finish()
    pieces: list[Any] = []
    for part in Alphabet(control)._splitter.split(text):  # type: ignore[union-attr]
        pieces += parser.feed(part, control.get(part))
    return pieces + parser.finish()


@EACH_FORMAT
def test_every_marker_of_calls_is_read(output_format: OutputFormat):
    control = {marker: number for number, marker in enumerate(markers(output_format)) if marker.startswith("<|")}
    pieces = read_tokens(output_format, write(output_format, calls=CALLS), control, as_tokens=True)
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["first", "second"]
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, ArgumentText))
    assert arguments.replace(" ", "") == '{"a":"x","b":"y"}' * 2
    assert not [piece for piece in pieces if isinstance(piece, ContentText) and piece.text.strip()]


@EACH_FORMAT
def test_text_that_spells_markers_is_text(output_format: OutputFormat):
    control = {marker: number for number, marker in enumerate(markers(output_format)) if marker.startswith("<|")}
    text = write(output_format, calls=CALLS)
    pieces = read_tokens(output_format, text, control, as_tokens=False)
    assert "".join(piece.text for piece in pieces) == text
    assert {type(piece) for piece in pieces} == {ContentText}


@EACH_FORMAT
def test_free_text_holds_no_token_of_a_call(output_format: OutputFormat):
    control = {marker: number for number, marker in enumerate(markers(output_format)) if marker.startswith("<|")}
    tag = plan(
        output_format, functions=[Function("first", SCHEMA)], choice=ToolChoice(), parallel=True, response_format=None,
        stage="content", marker_ids=control,
    ).tag  # fmt: skip
    assert tag is not None
    body = tag["format"]
    assert {*body["exclude_tokens"], *body["trigger_tokens"]} == set(control.values())


def test_the_announcing_token_of_minimax_m3_counts_by_its_id():
    """`]<]minimax[>[` is one token and begins every tag: ordinary text that spells it opens no call."""
    announced, tool = "]<]minimax[>[", Policy(tools={"tide": {}})
    found = marker_ids(named("minimax_m3"), {announced: 7, "<mm:think>": 8, "unused": 9})
    assert found == {announced: 7, "<mm:think>": 8}
    text = write(named("minimax_m3"), calls=[WrittenCall("tide", {"port": "Brest"})])
    spelled = Parser(named("minimax_m3"), tool, opened="", marker_ids=found)
    assert spelled.feed(text) + spelled.finish() == [ContentText(text)]
    meant = Parser(named("minimax_m3"), tool, opened="", marker_ids=found)
    parts = [piece for part in text.split(announced)[1:] for piece in meant.feed(announced, 7) + meant.feed(part)]
    assert [piece.name for piece in parts if isinstance(piece, CallStart)] == ["tide"]


def test_a_marker_may_consist_of_several_tokens():
    """Kimi K3 writes `<|open|>tools<|sep|>` with three."""
    tokens = {"<|open|>": 1, "<|sep|>": 2, "<|close|>": 3, "<|im_middle|>": 4}
    assert marker_ids(named("kimi_k3"), tokens) == {"<|open|>": 1, "<|sep|>": 2, "<|close|>": 3}


def test_markers_of_one_part():
    described = OutputFormat(reasoning=Reasoning(start=("<a>\n",), end=("</a>",)), content=Content(start=("<b>",)))
    assert markers(described, "reasoning") == ("<a>", "</a>")
    assert list(texts(described, "reasoning", "content")) == ["<a>\n", "</a>", "<b>"]
