"""NVIDIA Nemotron Nano v2: `<TOOLCALL>[{"name": "f", "arguments": {...}}]</TOOLCALL>` behind `<think>` reasoning."""

from __future__ import annotations

from events.formats.output_format import JsonKeys, OutputFormat, Reasoning, Tools

NAMES = ("nemotron_nano_v2",)
FORMAT = OutputFormat(
    name="nemotron_v2",
    reasoning=Reasoning(start=("<think>",), end=("</think>",)),
    tools=Tools(
        section_start="<TOOLCALL>[",
        section_end="]</TOOLCALL>",
        call_separator=", ",
        json=JsonKeys(array=True),
    ),
    drop=("<SPECIAL_12>",),
)
