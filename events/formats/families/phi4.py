"""Phi-4-mini: `functools[{...}]`. Its templates declare tools but do not render calls."""

from __future__ import annotations

from events.formats.family import Family, explained
from events.formats.output_format import OutputFormat
from events.formats.samples import BREST, Sample
from events.formats.shapes import listed_json

PHI4 = OutputFormat(name="phi4_mini_json", tools=listed_json("functools[", "]"))


SAMPLES = {
    "phi4_mini_json": [
        Sample(
            'functools[{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}]',
            [BREST, ("now", {})],
        ),
        Sample("Python's functools [sic] helps.", content="Python's functools [sic] helps."),
    ],
}

FAMILY = Family(
    formats=(PHI4,),
    signs=(explained(PHI4, "<|tool|>", "<|/tool|>"),),
    samples=SAMPLES,
)
