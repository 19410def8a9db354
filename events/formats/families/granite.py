"""IBM Granite: 20B FC, 3 and 4 write JSON calls in three different ways; 3 introduces its reasoning with a sentence."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import JsonKeys, OutputFormat, Reasoning, Tools
from events.formats.samples import BREST, Sample, json_samples
from events.formats.shapes import THINK, THINK_OR_CALL, tagged_json

REASONING = Reasoning(
    start=("Here is my thought process:", "Here's my thought process:"),
    end=("Here is my response:", "Here's my response:"),
)
GRANITE_20B = OutputFormat(name="granite-20b-fc", reasoning=THINK, tools=tagged_json("<function_call> ", ""))
GRANITE3 = OutputFormat(
    name="granite",
    reasoning=REASONING,
    tools=Tools(
        section_start="<|tool_call|> [", section_end="]", json=JsonKeys(array=True, array_only=True), failed="text"
    ),
    spellings=(("<tool_call>", "<|tool_call|>"),),
)
GRANITE4 = OutputFormat(name="granite4", reasoning=THINK_OR_CALL, tools=tagged_json())

SAMPLES = {
    "granite-20b-fc": [
        Sample(
            '<function_call> {"name": "tide", "arguments": {"port": "Brest"}} '
            '<function_call> {"name": "now", "arguments": {}}',
            [BREST, ("now", {})],
        )
    ],
    "granite": [
        Sample(
            'Low. [{"name": "tide", "arguments": {"port": "Brest"}}]',
            content='Low. [{"name": "tide", "arguments": {"port": "Brest"}}]',
        ),
        Sample(
            '<|tool_call|> [{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}]',
            [BREST, ("now", {})],
        ),
        Sample(
            "Here is my thought process: Spring tide. Here is my response: High.",
            content="High.",
            reasoning="Spring tide.",
        ),
    ],
    "granite4": json_samples("<tool_call>\n", "\n</tool_call>"),
}

FAMILY = Family(
    formats=(
        GRANITE_20B,
        GRANITE3,
        GRANITE4,
    ),
    names={"granite_thinking": "qwen3_coder"},
    reasoning={"granite": REASONING, "granite_thinking_parser": THINK_OR_CALL},
    samples=SAMPLES,
)
