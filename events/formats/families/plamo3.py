"""PLaMo 3: special tokens around the name and around the arguments of each call."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Arguments, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import think


def _marker(word: str, side: str = "begin") -> str:
    return f"<|plamo:{side}_{word}:plamo|>"


REASONING = think(_marker("tool_requests"), start=_marker("think"), end=_marker("think", "end"))
PLAMO3 = OutputFormat(
    name="plamo3",
    reasoning=REASONING,
    tools=Tools(
        style="tag",
        section_start=_marker("tool_requests"),
        section_end=_marker("tool_requests", "end"),
        call_start=_marker("tool_request"),
        call_end=_marker("tool_request", "end"),
        name_prefix=_marker("tool_name"),
        name_suffix=_marker("tool_name", "end"),
        arguments=Arguments(
            start=_marker("tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>",
            end=_marker("tool_arguments", "end"),
        ),
        truncated="name",
    ),
    drop=("<|plamo:tag|>",),
)

SAMPLES = {
    "plamo3": [
        Sample(
            "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|><|plamo:begin_tool_requests:plamo|>"
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>tide"
            "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json"
            '<|plamo:msg|>{"port": "Brest"}<|plamo:end_tool_arguments:plamo|>'
            "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
            [BREST],
            reasoning="Hm.",
        )
    ],
}

FAMILY = Family(
    formats=(PLAMO3,),
    reasoning={"plamo3": REASONING},
    samples=SAMPLES,
)
