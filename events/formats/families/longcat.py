"""LongCat: JSON calls in `<longcat_tool_call>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import json_samples
from events.formats.shapes import THINK, tagged_json

LONGCAT = OutputFormat(
    name="longcat", reasoning=THINK, tools=tagged_json("<longcat_tool_call>\n", "\n</longcat_tool_call>")
)

SAMPLES = {
    "longcat": json_samples("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
}

FAMILY = Family(
    formats=(LONGCAT,),
    samples=SAMPLES,
)
