"""Hunyuan: A13B writes a JSON list of calls; later models name the function in a tag."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Content, OutputFormat, Tools
from events.formats.samples import BREST, Sample, argument_tag_samples
from events.formats.shapes import argument_tags, listed_json, think

REASONING = think("<tool_calls>")
A13B = OutputFormat(
    name="hunyuan_a13b",
    reasoning=REASONING,
    content=Content(start=("<answer>\n",), end=("\n</answer>",)),
    tools=listed_json("<tool_calls>[", "]</tool_calls>"),
)
_TOOLS = Tools(
    style="tag",
    section_start="<tool_calls>",
    section_end="</tool_calls>",
    call_start="<tool_call>",
    call_end="</tool_call>",
    name_suffix="<tool_sep>",
    arguments=argument_tags(),
    undeclared="drop",
)
_SPELLINGS = tuple(
    (f"<{slash}{tag}:opensource>", f"<{slash}{tag}>")
    for tag in ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value", "think")
    for slash in ("", "/")
)
"""The published models of the fourth generation add `:opensource` to every marker."""
V3 = OutputFormat(name="hy_v3", reasoning=REASONING, tools=_TOOLS, spellings=_SPELLINGS)
V4 = OutputFormat(name="hy_v4", reasoning=REASONING, tools=_TOOLS, spellings=_SPELLINGS)

SAMPLES = {
    "hunyuan_a13b": [
        Sample("<think>\nEbb?\n</think>\n<answer>\nLow.\n</answer>", content="Low.", reasoning="Ebb?"),
        Sample('<tool_calls>[{"name": "tide", "arguments": {"port": "Brest"}}]</tool_calls>', [BREST]),
    ],
    "hy_v3": [
        Sample(f"<tool_calls>{sample.text}</tool_calls>", sample.calls)
        for sample in argument_tag_samples(between="<tool_sep>")
    ],
    "hy_v4": [
        Sample(
            "<tool_calls:opensource><tool_call:opensource>tide<arg_key:opensource>port</arg_key:opensource>"
            "<arg_value:opensource>Brest</arg_value:opensource></tool_call:opensource>"
            "</tool_calls:opensource>",
            [BREST],
        ),
        *(
            Sample(f"<tool_calls>\n{sample.text}\n</tool_calls>", sample.calls)
            for sample in argument_tag_samples(between="<tool_sep>")
        ),
    ],
}

FAMILY = Family(
    formats=(
        A13B,
        V3,
        V4,
    ),
    names={"hunyuan": "hy_v3"},
    reasoning={"hunyuan": REASONING, "hunyuan_a13b": REASONING},
    samples=SAMPLES,
)
