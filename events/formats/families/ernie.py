"""ERNIE 4.5: JSON calls in tags, the answer in `<response>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Content, OutputFormat
from events.formats.samples import Sample, json_samples
from events.formats.shapes import THINK_OR_CALL, tagged_json

ERNIE = OutputFormat(
    name="ernie45",
    reasoning=THINK_OR_CALL,
    content=Content(start=("<response>\n",), end=("\n</response>",)),
    tools=tagged_json(),
)

SAMPLES = {
    "ernie45": [
        *json_samples("<tool_call>\n", "\n</tool_call>"),
        Sample(
            "Ebb.</think>\n\n<response>\nLow at six.\n</response>\n",
            content="Low at six.",
            reasoning="Ebb.",
            prefix="<think>",
        ),
    ],
}

FAMILY = Family(
    formats=(ERNIE,),
    names={"ernie_45": "ernie45"},
    reasoning={"ernie45": THINK_OR_CALL},
    samples=SAMPLES,
)
