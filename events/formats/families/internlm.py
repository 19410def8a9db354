"""InternLM 2 and Intern-S1: JSON calls after `<|action_start|><|plugin|>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import json_samples
from events.formats.shapes import PARAMETERS, THINK, THINK_OR_CALL, tagged_json

INTERNLM = OutputFormat(
    name="internlm",
    reasoning=THINK,
    tools=tagged_json("<|action_start|><|plugin|>\n", "\n<|action_end|>", PARAMETERS),
    drop=("<|im_end|>",),
)

SAMPLES = {
    "internlm": json_samples("<|action_start|><|plugin|>\n", "\n<|action_end|>", "parameters"),
}

FAMILY = Family(
    formats=(INTERNLM,),
    names={"interns1": "internlm"},
    reasoning={"interns1": THINK_OR_CALL},
    samples=SAMPLES,
)
