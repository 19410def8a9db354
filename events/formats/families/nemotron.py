"""NVIDIA Nemotron: v2 lists JSON calls in `<TOOLCALL>`; 3 writes Qwen3-Coder's tags and may not close its reasoning."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat, Reasoning
from events.formats.samples import BREST, Sample, function_tag_samples
from events.formats.shapes import THINK, function_tag, listed_json

NEMOTRON2 = OutputFormat(
    name="nemotron_v2",
    reasoning=THINK,
    tools=listed_json("<TOOLCALL>[", "]</TOOLCALL>"),
    drop=("<SPECIAL_12>",),
)
_UNCLOSED_IS_CONTENT = Reasoning(start=("<think>",), end=("</think>",), ended_by=("<tool_call>",), unclosed="content")
NEMOTRON3 = OutputFormat(name="nemotron_3", reasoning=_UNCLOSED_IS_CONTENT, tools=function_tag(), drop=("<|im_end|>",))

SAMPLES = {
    "nemotron_v2": [
        Sample(
            'Hm.</think><TOOLCALL>[{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", '
            '"arguments": {}}]</TOOLCALL>',
            [BREST, ("now", {})],
            reasoning="Hm.",
            prefix="<think>",
        )
    ],
    "nemotron_3": [
        *function_tag_samples("<tool_call>", "</tool_call>"),
        Sample("<think>Ebb.", content="Ebb."),
        Sample("<think>Ebb.</think>Low.", content="Low.", reasoning="Ebb."),
    ],
}

FAMILY = Family(
    formats=(
        NEMOTRON2,
        NEMOTRON3,
    ),
    names={"nemotron_nano_v2": "nemotron_v2", "nemotron_v3": "nemotron_3"},
    reasoning={"nemotron_3": _UNCLOSED_IS_CONTENT, "nemotron_v3": _UNCLOSED_IS_CONTENT},
    samples=SAMPLES,
)
