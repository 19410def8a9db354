"""Phi-4-mini: `functools[{...}]`. Its templates declare tools and render no call."""

from __future__ import annotations

from events.formats.family import Family, Seen, Sign, calls
from events.formats.output_format import OutputFormat
from events.formats.samples import BREST, Sample
from events.formats.shapes import listed_json

PHI4 = OutputFormat(name="phi4_mini_json", tools=listed_json("functools[", "]"))


def _declares_tools(seen: Seen) -> bool:
    return not seen.calls_rendered and "<|tool|>" in seen.system and "<|/tool|>" in seen.system


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
    signs=(
        Sign(
            name="phi4_mini_json",
            what="tools are declared between <|tool|> and <|/tool|>",
            test=_declares_tools,
            apply=calls(PHI4),
            used_for="its calls",
        ),
    ),
    samples=SAMPLES,
)
