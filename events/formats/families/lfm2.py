"""Liquid LFM2: a list of Python calls between special tokens. Its templates declare tools but do not render calls."""

from __future__ import annotations

from events.formats.family import Family, explained
from events.formats.output_format import Content, OutputFormat, Tools
from events.formats.samples import BREST, Sample, python_samples
from events.formats.shapes import PYTHON_ARGUMENTS, THINK

LFM2 = OutputFormat(
    name="lfm2",
    reasoning=THINK,
    content=Content(after_calls="drop"),
    tools=Tools(
        style="tag",
        section_start="<|tool_call_start|>[",
        section_end="]<|tool_call_end|>",
        call_separator=", ",
        name_suffix="(",
        arguments=PYTHON_ARGUMENTS,
        undeclared="drop",
        failed="drop",
    ),
)

SAMPLES = {
    "lfm2": [
        *python_samples("<|tool_call_start|>", "<|tool_call_end|>"),
        Sample('<|tool_call_start|>[{"name": "tide", "arguments": {"port": "Brest"}}]<|tool_call_end|>', [BREST]),
    ],
}

FAMILY = Family(
    formats=(LFM2,),
    signs=(explained(LFM2, "List of tools: "),),
    samples=SAMPLES,
)
