"""Qwen: JSON calls in tags (Hermes 2 Pro, Qwen2.5, QwQ, Qwen3), function and parameter tags since Qwen3-Coder."""

from __future__ import annotations

from events.formats.family import Family, explained, own_markers
from events.formats.output_format import OutputFormat
from events.formats.samples import BREST, Sample, function_tag_samples, json_samples
from events.formats.shapes import THINK, THINK_OR_CALL, function_tag, tagged_json

HERMES = OutputFormat(
    name="hermes",
    reasoning=THINK_OR_CALL,
    tools=tagged_json(),
    drop=("<|im_end|>",),
    spellings=(("<longcat_tool_call>", "<tool_call>"), ("</longcat_tool_call>", "</tool_call>")),
)
QWEN3_CODER = OutputFormat(name="qwen3_coder", reasoning=THINK_OR_CALL, tools=function_tag(), drop=("<|im_end|>",))

SAMPLES = {
    "hermes": [
        *json_samples("<tool_call>\n", "\n</tool_call>"),
        Sample(
            '<think>\nWhich port?\n</think>\n\n<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n'
            "</tool_call>",
            [BREST],
            reasoning="Which port?",
        ),
        Sample('{"name": "tide", "arguments": {"port": "Brest"}}', [BREST]),
        Sample(
            '{"name": "ferry", "arguments": {"port": "Brest"}}',
            content='{"name": "ferry", "arguments": {"port": "Brest"}}',
        ),
        Sample('{"high": 3, "name": "tide"}', content='{"high": 3, "name": "tide"}'),
        Sample('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}</tool_call>', [BREST]),
        Sample('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}}}\n</tool_call>', [BREST]),
        Sample('<tool_call>\n{"name": "tide", "arguments": "{\\"port\\": \\"Brest\\"}"}\n</tool_call>', [BREST]),
        Sample(
            '<tool_call>\n{"type": "function", "function": {"name": "tide", "arguments": {"port": "Brest"}}}\n'
            "</tool_call>",
            [BREST],
        ),
        Sample('<tool_call>\n{"name": "tide", "arguments": {"port": "Bre', [("tide", '{"port": "Bre')]),
        Sample(
            'thinking<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            [("now", {})],
            reasoning="thinking",
            prefix="<think>",
        ),
        Sample(
            '<tool_call>{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}\n'
            "</tool_call>",
            [BREST, ("now", {})],
        ),
        Sample('<tool_call>{"name": "now", "arguments": {}}, and so on', [("now", {})], content=", and so on"),
        Sample('<tool_call>{"name": "functions.tide", "arguments": {"port": "Brest"}}</tool_call>', [BREST]),
        Sample('<tool_call>[{"name": "now", "arguments": {}}, "and"]</tool_call>', [("now", {})], content='"and"]'),
        Sample(
            'I could say <tool_call>{"name": "now"}</tool_call> here.</think>No.',
            content="No.",
            reasoning='I could say <tool_call>{"name": "now"}</tool_call> here.',
            prefix="<think>",
        ),
        Sample(
            'I ask. <tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            [("now", {})],
            reasoning="I ask.",
            prefix="<think>",
        ),
    ],
    "qwen3_coder": [
        *function_tag_samples("<tool_call>", "</tool_call>"),
        Sample('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>', [BREST]),
    ],
}

FAMILY = Family(
    formats=(
        HERMES,
        QWEN3_CODER,
    ),
    names={
        "qwen": "hermes",
        "qwen25": "hermes",
        "trinity": "hermes",
        "qwen25_json": "hermes",
        "qwen3": "hermes",
        "qwen3_json": "hermes",
        "qwen3_xml": "qwen3_coder",
    },
    reasoning={
        "qwen3": THINK_OR_CALL,
        "qwen3-thinking": THINK_OR_CALL,
        "qwen3_coder": THINK_OR_CALL,
        "nanbeige": THINK_OR_CALL,
        "think": THINK,
    },
    signs=(
        own_markers(QWEN3_CODER),
        own_markers(HERMES),
        explained(QWEN3_CODER, "<tool_call>", "<function=", "<parameter="),
    ),
    samples=SAMPLES,
)
