"""Cohere's Command A and later models: calls in one JSON list, each with an id and the name under `tool_name`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Content, JsonKeys, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import think

REASONING = think(start="<|START_THINKING|>", end="<|END_THINKING|>")
COMMAND = OutputFormat(
    name="cohere_command3",
    reasoning=REASONING,
    content=Content(start=("<|START_RESPONSE|>", "<|START_TEXT|>"), end=("<|END_RESPONSE|>", "<|END_TEXT|>")),
    tools=Tools(
        section_start="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        call_separator=",\n    ",
        json=JsonKeys(name="tool_name", arguments="parameters", id="tool_call_id", array=True),
    ),
    drop=("<|END_OF_TURN_TOKEN|>",),
)

SAMPLES = {
    "cohere_command3": [
        Sample(
            "<|START_THINKING|>Ask.<|END_THINKING|><|START_ACTION|>[\n"
            '    {"tool_call_id": "7", "tool_name": "tide", "parameters": {"port": "Brest"}}\n'
            "]<|END_ACTION|>",
            [BREST],
            reasoning="Ask.",
            ids=["7"],
        ),
        Sample("<|START_RESPONSE|>High.<|END_RESPONSE|>", content="High."),
        Sample(
            '<|START_ACTION|>[{"tool_call_id": "7", "tool_name": "now", "note": 1}]<|END_ACTION|>',
            [("now", {})],
            ids=["7"],
        ),
    ],
}

FAMILY = Family(
    formats=(COMMAND,),
    names={"cohere_command4": "cohere_command3"},
    reasoning={"cohere_command3": REASONING, "cohere_command4": REASONING},
    samples=SAMPLES,
)
