"""MiniMax M2: invoke and parameter tags in `<minimax:tool_call>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Content, OutputFormat
from events.formats.samples import Sample, invoke_samples
from events.formats.shapes import THINK, THINK_OR_CALL, invoke_tags

_TOOLS = invoke_tags(section=("<minimax:tool_call>\n", "</minimax:tool_call>"), untyped="string", undeclared="drop")
MINIMAX_M2 = OutputFormat(name="minimax_m2", reasoning=THINK_OR_CALL, tools=_TOOLS)
APPEND_THINK = OutputFormat(name="minimax-append-think", content=Content(prefix="<think>"), tools=_TOOLS)
"""For clients that expect reasoning in the content, with the opening marker that the prompt contains."""

SAMPLES = {
    "minimax_m2": [
        *invoke_samples("<minimax:tool_call>", "</minimax:tool_call>"),
        Sample(
            '<minimax:tool_call>\n<invoke name="ferry">\n<parameter name="n">1</parameter>\n'
            "</invoke>\n</minimax:tool_call>"
        ),
        Sample(
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            [("f", {"n": "1"})],
            tools=None,
        ),
    ],
    "minimax-append-think": [Sample("Hm.</think>Yes.", content="<think>Hm.</think>Yes.")],
}

FAMILY = Family(
    formats=(
        MINIMAX_M2,
        APPEND_THINK,
    ),
    reasoning={
        "minimax": THINK_OR_CALL,
        "minimax_m2": THINK_OR_CALL,
        "minimax-append-think": THINK,
        "minimax_m2_append_think": THINK,
    },
    samples=SAMPLES,
)
