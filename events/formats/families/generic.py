"""Models of which only the name is known; see `events.formats.detection`."""

from __future__ import annotations

from events.formats.detection import detected_format
from events.formats.family import Family
from events.formats.samples import BREST, Sample, json_samples

GENERIC = detected_format("reasoning")

SAMPLES = {
    "generic": [
        *json_samples("<tool_call>\n", "\n</tool_call>"),
        Sample('[TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST]),
        Sample('<function=tide>{"port": "Brest"}</function>', [BREST]),
        Sample("<thought>Hm.</thought>Yes.", content="Yes.", reasoning="Hm."),
    ],
}

FAMILY = Family(
    formats=(GENERIC,),
    names={"hf": "generic"},
    samples=SAMPLES,
)
