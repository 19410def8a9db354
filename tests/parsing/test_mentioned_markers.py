"""Markers of calls that a text mentions: what follows them is no call, and nothing of the text is lost."""

from __future__ import annotations

import json
import re

import pytest

from events.formats.output_format import OutputFormat, markers
from events.formats.registry import FORMATS
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ContentText, Piece, ReasoningText
from events.parsing.policy import Policy
from tests.formats.reading import splits

TOOLS = {"bash": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}
MENTIONED = [
    (name, marker.strip(), output_format)
    for name, output_format in FORMATS.items()
    if output_format.reasoning and output_format.reasoning.unclosed != "content" and not output_format.channels
    for marker in output_format.reasoning.ended_by
    if output_format.tools and output_format.tools.failed == "content" and output_format.boundaries == "lenient"
    if marker.strip() in (output_format.tools.section_start.strip(), output_format.tools.call_start.strip())
]
SENTENCES = ["The user asks about `{}` tags. I will explain.", "{} is a marker, isn't it? " + "Yes. " * 80]


def texts(output_format: OutputFormat, pieces: list[str], tokens: dict[str, int]) -> tuple[str, str, list[Piece]]:
    """The reasoning, the content, and the other pieces, with each of these tokens fed as one."""
    parser = Parser(output_format, Policy(tools=TOOLS), marker_ids=tokens)
    said: list[Piece] = []
    pattern = re.compile("(" + "|".join(map(re.escape, tokens)) + ")") if tokens else re.compile("(?!)")
    for piece in pieces:
        for part in filter(None, pattern.split(piece)):
            said += parser.feed(part, tokens.get(part))
    said += parser.finish()
    reasoning = "".join(piece.text for piece in said if isinstance(piece, ReasoningText))
    content = "".join(piece.text for piece in said if isinstance(piece, ContentText))
    return reasoning, content, [piece for piece in said if isinstance(piece, CallStart | ArgumentText | CallEnd)]


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize(("name", "marker", "output_format"), MENTIONED, ids=[f"{n}-{m}" for n, m, _ in MENTIONED])
def test_a_mentioned_marker_is_text(name: str, marker: str, output_format: OutputFormat, sentence: str):
    reasoning = output_format.reasoning
    assert reasoning is not None
    start, end = reasoning.start[0].strip(), reasoning.end[0].strip()
    said = sentence.format(marker).strip()
    for tokens in ({}, {marker: 1, start: 2, end: 3}):
        thought = f"{start}{said}{end}Hello."
        assert texts(output_format, [thought], tokens) == (said, "Hello.", [])
        answered = f"{start}Hm.{end}{said}"
        assert texts(output_format, [answered], tokens) == ("Hm.", said, [])
    for pieces in splits(thought, 2):
        assert texts(output_format, pieces, {}) == (said, "Hello.", [])


@pytest.mark.parametrize("name", ["hermes", "glm45", "kimi_k2", "gemma4", "hunyuan_a13b"])
def test_a_marker_at_the_end_of_reasoning_is_text(name: str):
    output_format = FORMATS[name]
    reasoning = output_format.reasoning
    assert reasoning is not None
    start, end, marker = (mark.strip() for mark in (reasoning.start[0], reasoning.end[0], reasoning.ended_by[0]))
    for tokens in ({}, {marker: 1, start: 2, end: 3}):
        assert texts(output_format, [f"{start}Say {marker}{end}Hello."], tokens) == (f"Say {marker}", "Hello.", [])


def test_a_quoted_pair_of_tags_is_text():
    said = "GLM writes calls in `<tool_call>`...`</tool_call>` tags."
    for tokens in ({}, {"<tool_call>": 1, "</tool_call>": 2}):
        assert texts(FORMATS["glm45"], [said], tokens) == ("", said, [])


@pytest.mark.parametrize("made", ["functions.bash:0", "functionsbash5", "functions.bash5", "functions_bash_1", "bash"])
def test_an_altered_id_names_its_function(made: str):
    """Clients replace characters of ids, and Kimi K2 imitates the ids of the conversation."""
    said = (
        f"<|tool_calls_section_begin|><|tool_call_begin|>{made}<|tool_call_argument_begin|>"
        '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    (start, *_) = texts(FORMATS["kimi_k2"], [said], {})[2]
    assert isinstance(start, CallStart) and start.name == "bash"


def test_the_type_of_a_body_is_no_part_of_the_name():
    """The marker before it is a token that is not shown."""
    said = '<|channel|>commentary to=functions.bash<|constrain|>json<|message|>{"command":"ls"}<|call|>'
    output_format = FORMATS["openai"]
    tokens = {mark: number for number, mark in enumerate(markers(output_format)) if mark.startswith("<|")}
    (start, *_) = texts(output_format, [said], tokens)[2]
    assert isinstance(start, CallStart) and start.name == "bash" and "<|constrain|>" in tokens


@pytest.mark.parametrize("closing", ["}}}", "}}"])
def test_a_call_in_doubled_braces_is_one(closing: str):
    said = '<tool_call>\n{{"name": "bash", "arguments": {"command": "ls"}' + closing[1:] + "\n</tool_call>"
    (start, *_) = texts(FORMATS["hermes"], [said], {})[2]
    assert isinstance(start, CallStart) and start.name == "bash"


@pytest.mark.parametrize("tokens", [{}, {"<tool_call>": 1, "</tool_call>": 2, "</arg_key>": 3, "<arg_value>": 4}])
def test_a_calls_opener_in_place_of_an_arguments_begins_the_argument(tokens: dict[str, int]):
    said = "<tool_call>bash<tool_call>command</arg_key><arg_value>ls</arg_value></tool_call>"
    reasoning, content, call = texts(FORMATS["glm45"], [said], tokens)
    assert (reasoning, content) == ("", "") and isinstance(call[0], CallStart) and call[0].name == "bash"
    two = "<tool_call>bash\n<tool_call>bash\n<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
    assert sum(isinstance(piece, CallStart) for piece in texts(FORMATS["glm45"], [two], tokens)[2]) == 2


@pytest.mark.parametrize(
    "written",
    [
        'bash{"command": "ls -a }"}',
        "bash{command:'ls -a }'}",
        'bash(command="ls -a }")',
        'default_api:bash{command:"ls -a }"}',
    ],
)
def test_gemma_writes_ordinary_quotes_too(written: str):
    """Beside its own, `<|"|>`, and with the name of its own namespace."""
    for tokens in ({}, {"<|tool_call>": 1, "<tool_call|>": 2, '<|"|>': 3}):
        _, content, call = texts(FORMATS["gemma4"], [f"<|tool_call>call:{written}<tool_call|>"], tokens)
        assert isinstance(call[0], CallStart) and call[0].name == "bash" and content == ""
        arguments = "".join(piece.text for piece in call if isinstance(piece, ArgumentText))
        assert json.loads(arguments) == {"command": "ls -a }"}
