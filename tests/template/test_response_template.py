"""`response_template` beside transformers' own reader of it: the same messages from the same texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from events.formats.output_format import OutputFormat, Tools
from events.formats.registry import named
from events.parsing.policy import Policy
from events.template.analyser import TemplateAnalysis
from events.template.response_template import apply_response_template
from tests.formats.reading import parsed, read, splits

THINK = {"open": "<think>", "close": "</think>"}
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def template(calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "start_anchor": "<|assistant|>",
        "fields": {"thinking": THINK, "content": {}, "tool_calls": calls, **fields},
    }


TAGGED_JSON = template(
    {
        "open": "<call>", "close": "</call>", "repeats": True, "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    }
)  # fmt: skip
OTHER_KEYS = template(
    {
        "open": "<|BEGIN|>", "close": "<|END|>", "content": "json", "transform_each": True,
        "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{given}"}},
    },
    content={"open": "<|SAY|>", "close": "<|SAID|>"},
)  # fmt: skip
NAMED = template(
    {
        "open_pattern": r"<call>\s*<fn=(?P<name>\w+)>", "close": "</call>", "repeats": True, "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg=(?P<key>\w+)>\s*(?P<value>.*?)\s*</arg>",
            "value_parser": {"name": "json", "args": {"allow_non_json": True}},
        },
        "transform": FUNCTION,
    }
)  # fmt: skip
BARE_KEYS = template(
    {
        "open_pattern": r"<\|call>do:(?P<name>\w+)", "close": "<call|>", "repeats": True, "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [["<|q|>", "<|q|>"]]}, "transform": FUNCTION,
    }
)  # fmt: skip
CASES = [
    (TAGGED_JSON, '<think>Ask.</think><call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</call>'),
    (
        TAGGED_JSON,
        '<call>{"name": "tide", "arguments": {"port": "Brest"}}</call>\n<call>{"name": "now", "arguments": {}}</call>',
    ),
    (TAGGED_JSON, "<think>Nothing to do.</think>High at six."),
    (OTHER_KEYS, '<think>Ask.</think><|BEGIN|>[{"tool": "tide", "given": {"port": "Brest", "days": 2}}]<|END|>'),
    (OTHER_KEYS, "<|SAY|>High at six.<|SAID|>"),
    (NAMED, "<call>\n<fn=tide><arg=port>\nBrest\n</arg><arg=days>2</arg></call>"),
    (BARE_KEYS, "<|call>do:tide{port:<|q|>Brest<|q|>,days:2}<call|>"),
]


@pytest.mark.parametrize(("spec", "text"), CASES)
def test_messages_are_those_that_transformers_reads(spec: dict[str, Any], text: str):
    expected = parse_response(text, spec, prefix="")
    analysis = apply_response_template(TemplateAnalysis(), spec)
    assert analysis.warnings == ()
    for pieces in [[text], *splits(text, 3)]:
        message = read(analysis.output_format, pieces, Policy())
        assert message.reasoning.strip() == expected.get("thinking", "")
        assert message.content.strip() == expected.get("content", "")
        calls = [{"name": name, "arguments": parsed(arguments)} for name, _, arguments in message.calls]
        assert calls == [call["function"] for call in expected.get("tool_calls", [])]


def test_an_analysis_that_says_the_same_keeps_what_it_knows_beside():
    found = TemplateAnalysis(output_format=named("hermes"))
    spec = template({**TAGGED_JSON["fields"]["tool_calls"], "open": "<tool_call>", "close": "</tool_call>"})
    both = apply_response_template(found, spec)
    assert (both.output_format, both.warnings) == (found.output_format, ())
    assert "response_template" in both.findings[-1]


def test_the_checkpoint_goes_before_the_template_with_a_warning():
    found = TemplateAnalysis(output_format=OutputFormat(tools=Tools(call_start="<tool>", call_end="</tool>")))
    both = apply_response_template(found, TAGGED_JSON)
    assert both.output_format.tools is not None
    assert both.output_format.tools.call_start == "<call>"
    assert both.warnings == (
        "response_template says that tools is between ['<call>', '</call>'], the chat template shows ['<tool>', "
        "'</tool>']; the response_template is used",
    )


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({"fields": []}, "response_template is ignored: Expected `object`, got `array` - at `$.fields`"),
        ({"fields": {}, "version": 2}, "response_template is ignored: its version is 2, and 1 is known"),
        (
            template({"open_pattern": "<(a|b)>", "close": "</a>", "transform": {"function": "{content}"}}),
            "response_template: tool_calls is read as the chat template shows it, because the pattern '<(a|b)>' is more "
            "than literal text",
        ),
    ],
)
def test_what_cannot_be_read_is_said_and_changes_nothing(spec: dict[str, Any], warning: str):
    found = TemplateAnalysis(output_format=named("hermes"))
    both = apply_response_template(found, spec)
    assert both.output_format == found.output_format
    assert both.warnings == (warning,)


def test_inspect_shows_it(tmp_path, capsys):
    from agent_server.cli.inspect import inspect

    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages[0].content }}", "response_template": TAGGED_JSON})
    )
    inspect(str(tmp_path))
    shown = capsys.readouterr().out
    assert "describes its own output in response_template" in shown
    assert "<call>" in shown
