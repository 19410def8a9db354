"""Kimi K2: calls between special tokens, with the function's name inside the call's id: `functions.NAME:0`."""

from __future__ import annotations

from events.formats.family import Family, Sign, reasoning
from events.formats.output_format import CallId, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import think

REASONING = think("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
KIMI_K2 = OutputFormat(
    name="kimi_k2",
    reasoning=REASONING,
    tools=Tools(
        style="tag",
        section_start="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call_start="<|tool_call_begin|>",
        call_end="<|tool_call_end|>",
        name_prefix="functions.",
        name_suffix=":{index}<|tool_call_argument_begin|>",
        id=CallId(position="in_name"),
        undeclared="drop",
    ),
    drop=("<|im_end|>",),
)

SAMPLES = {
    "kimi_k2": [
        Sample(
            "So.<|tool_calls_section_begin|> er <|tool_call_begin|>functions.now:0"
            "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            [("now", {})],
            content="So.",
            ids=["functions.now:0"],
        ),
        Sample("<|tool_calls_section_begin|> is a marker.", content="<|tool_calls_section_begin|> is a marker."),
        Sample(
            '<think>Ask.<|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>{"port": "Brest"}'
            "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}",
            [BREST, ("now", {})],
            reasoning="Ask.",
            ids=["functions.tide:0", "functions.now:1"],
        ),
        Sample(
            "<think>Ask.</think>Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.tide:0"
            '<|tool_call_argument_begin|>{"port": "Brest"}<|tool_call_end|>'
            "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            [BREST, ("now", {})],
            content="Sure.",
            reasoning="Ask.",
            ids=["functions.tide:0", "functions.now:1"],
        ),
    ],
}

FAMILY = Family(
    formats=(KIMI_K2,),
    names={"kimi": "kimi_k2"},
    reasoning={"kimi_k2": REASONING, "kimi": REASONING},
    signs=(
        Sign(
            name="kimi_k2",
            what="calls stand in <|tool_calls_section_begin|>, and no reasoning is shown",
            test=lambda evidence: (
                evidence.derived.reasoning is None and "<|tool_calls_section_begin|>" in evidence.call
            ),
            apply=reasoning(KIMI_K2),
            used_for="its reasoning",
        ),
    ),
    samples=SAMPLES,
)
