"""Llama 3 and 4: JSON objects without a marker, or a list of Python calls."""

from __future__ import annotations

import msgspec

from events.formats.family import Evidence, Family, Sign
from events.formats.output_format import OutputFormat, Tools
from events.formats.samples import BREST, Sample, python_samples
from events.formats.shapes import PARAMETERS, PYTHON_ARGUMENTS, THINK

_PYTHON_TAG = "<|python_tag|>"
LLAMA3 = OutputFormat(
    name="llama3_json",
    tools=Tools(section_start=_PYTHON_TAG, call_separator="; ", json=PARAMETERS, bare="always"),
    drop=("<|eom_id|>", "<|eot_id|>"),
)
PYTHONIC = OutputFormat(
    name="pythonic",
    reasoning=THINK,
    tools=Tools(
        style="tag",
        section_start="<|python_start|>[",
        section_end="]<|python_end|>",
        call_separator=", ",
        name_suffix="(",
        arguments=PYTHON_ARGUMENTS,
        bare="always",
    ),
)


def _has_unmarked_calls(evidence: Evidence) -> bool:
    """Return whether the template writes calls as JSON without a marker, but calls of built-in tools with one."""
    tools = evidence.derived.tools
    if tools is None or tools.style != "json" or _PYTHON_TAG not in evidence.source:
        return False
    return evidence.calls_rendered and not (tools.section_start + tools.call_start).strip()


def _with_python_tag(derived: OutputFormat) -> OutputFormat:
    """Add the marker for calls of built-in tools, which models also write before other calls."""
    assert derived.tools is not None
    tools = msgspec.structs.replace(derived.tools, section_start=_PYTHON_TAG)
    return msgspec.structs.replace(derived, tools=tools)


SAMPLES = {
    "llama3_json": [
        Sample(
            '<|python_tag|>{"name": "tide", "parameters": {"port": "Brest"}}; {"name": "now", "parameters": '
            "{}}<|eom_id|>",
            [BREST, ("now", {})],
        ),
        Sample('{"name": "tide", "parameters": {"port": "Brest"}}', [BREST], tools=None),
        Sample('{"name": "Ann", "age": 7}', content='{"name": "Ann", "age": 7}'),
        Sample(
            '{"name": "tide", "parameters": {"port": "Brest"}}\n{"name": "now", "parameters": {}}', [BREST, ("now", {})]
        ),
        Sample(
            '{"name": "tide", "parameters": {"port": "Brest"}}; {"name": "now", "parameters": {}}\n',
            [BREST, ("now", {})],
        ),
        Sample('{"name": "tide", "parameters": {"port": "Brest"}}\n{"port": 1}', [BREST], content='\n{"port": 1}'),
        Sample('{"name": "tide", "parameters": {"port": "Brest"}}\nDone.', [BREST], content="\nDone."),
        Sample(
            'Let me look. {"name": "tide", "parameters": {"port": "Brest"}} Soon.',
            [BREST],
            content="Let me look.  Soon.",
        ),
        Sample(
            'Such as {"name": "Ann"} or {"port": {"name": 1}} and {a}, {',
            content='Such as {"name": "Ann"} or {"port": {"name": 1}} and {a}, {',
        ),
        Sample(
            'I look.\n[{"name": "tide", "parameters": {"port": "Brest"}}, {"name": "now", "parameters": {}}] Soon [1].',
            [BREST, ("now", {})],
            content="I look.\n Soon [1].",
        ),
        Sample(
            'In [1] or [{"name": "Ann"}] or [{"port": 1}, [',
            content='In [1] or [{"name": "Ann"}] or [{"port": 1}, [',
        ),
        Sample('Such as {"name": "Ann"}', content='Such as {"name": "Ann"}', tools=None),
        Sample('Wait: {"name": "tide", "par', content="Wait:"),
        Sample("{an open brace", content="{an open brace"),
        Sample('{"port": "Brest", "na', content='{"port": "Brest", "na'),
    ],
    "pythonic": [
        Sample(
            "[tide(port='sed -n '1,9p' x', note=\"say \"hi\" to (b\", hours=6)]",
            [("tide", {"port": "sed -n '1,9p' x", "note": 'say "hi" to (b', "hours": 6})],
        ),
        Sample("[tide(port='f('a')', tags=['it's', 'b'])]", [("tide", {"port": "f('a')", "tags": ["it's", "b"]})]),
        Sample(
            "[tide(port=f'Brest', note=rb\"x\", extra=f)]", [("tide", {"port": "Brest", "note": "x", "extra": "f"})]
        ),
        Sample(
            "See [here] and [tide(port='Brest')] or [ferry()] and [now()]: [",
            [BREST, ("now", {})],
            content="See [here] and  or [ferry()] and : [",
        ),
        Sample(
            "[tide(tags={'a', 'b'}, extra={'depth': {1, 2.5}, 'none': {}}), tide(tags={'c'})]",
            [("tide", {"tags": ["a", "b"], "extra": {"depth": [1, 2.5], "none": {}}}), ("tide", {"tags": ["c"]})],
        ),
        Sample(
            "[tide(port=\"5\", hours=\"6\", metric='yes', tags=\"['a', 'b']\", extra={'depth': '2.5'})]",
            [("tide", {"port": "5", "hours": 6, "metric": True, "tags": ["a", "b"], "extra": {"depth": 2.5}})],
        ),
        Sample(
            '[tide(port="Brest"tags=["a"]note="high")]', [("tide", {"port": "Brest", "tags": ["a"], "note": "high"})]
        ),
        *python_samples("", ""),
        *python_samples("<|python_start|>", "<|python_end|>"),
        Sample("[1] See the tables (2020).", content="[1] See the tables (2020)."),
    ],
}

FAMILY = Family(
    formats=(
        LLAMA3,
        PYTHONIC,
    ),
    names={"llama3": "llama3_json", "llama4_json": "llama3_json", "llama4_pythonic": "pythonic"},
    signs=(
        Sign(
            name="llama3_json",
            what="calls are JSON without a marker, calls of built-in tools stand behind <|python_tag|>",
            test=_has_unmarked_calls,
            apply=_with_python_tag,
            used_for="the marker in front of its calls",
        ),
    ),
    samples=SAMPLES,
)
