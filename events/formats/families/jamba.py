"""Jamba: `<tool_calls>[{...}, {...}]</tool_calls>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import BREST, Sample
from events.formats.shapes import THINK, listed_json

JAMBA = OutputFormat(name="jamba", reasoning=THINK, tools=listed_json("<tool_calls>[", "]</tool_calls>"))

SAMPLES = {
    "jamba": [
        Sample(
            '<tool_calls>[\n  {"name": "tide", "arguments": {"port": "Brest"}},\n'
            '  {"name": "now", "arguments": {}}\n]</tool_calls>',
            [BREST, ("now", {})],
        )
    ],
}

FAMILY = Family(
    formats=(JAMBA,),
    samples=SAMPLES,
)
