"""Salesforce xLAM: a JSON list of calls, bare or in a code fence, or after other families' markers."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import JsonKeys, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import THINK

_FENCE = "```json\n["
XLAM = OutputFormat(
    name="xlam",
    reasoning=THINK,
    tools=Tools(
        section_start=_FENCE, section_end="]\n```", json=JsonKeys(array=True), call_separator=", ", bare="always"
    ),
    spellings=tuple((opener, _FENCE) for opener in ("[TOOL_CALLS]", "<tool_call>", "```\n[", "```json[")),
    drop=("</tool_call>",),
)

SAMPLES = {
    "xlam": [
        Sample('So: [TOOL_CALLS][{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST], content="So:"),
        Sample('<tool_call>[{"name": "tide", "arguments": {"port": "Brest"}}]</tool_call>', [BREST]),
        Sample('[{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST], tools=None),
        Sample('```json\n[{"name": "tide", "arguments": {"port": "Brest"}}]\n```', [BREST]),
        Sample(
            'Like so:\n```json\n{"port": "Brest"}\n```\nGood.',
            content='Like so:\n```json\n{"port": "Brest"}\n```\nGood.',
        ),
    ],
}

FAMILY = Family(
    formats=(XLAM,),
    samples=SAMPLES,
)
