"""Xiaomi MiMo: Qwen3-Coder's tags, but line breaks around values are part of them."""

from __future__ import annotations

import msgspec

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import Sample
from events.formats.shapes import FUNCTION_TAG, THINK_OR_CALL, function_tag

_VERBATIM = msgspec.structs.replace(FUNCTION_TAG, value_prefix="", value_suffix="</parameter>")
MIMO = OutputFormat(name="mimo", reasoning=THINK_OR_CALL, tools=function_tag(arguments=_VERBATIM), drop=("<|im_end|>",))

SAMPLES = {
    "mimo": [
        Sample(
            "<tool_call><function=tide><parameter=port>Brest</parameter><parameter=hours>6</parameter>"
            "</function></tool_call>",
            [("tide", {"port": "Brest", "hours": 6})],
        ),
        Sample(
            "Sure.<tool_call><function=tide><parameter=port>\n Brest\n</parameter></function></tool_call>",
            [("tide", {"port": "\n Brest\n"})],
            content="Sure.",
        ),
    ],
}

FAMILY = Family(
    formats=(MIMO,),
    reasoning={"mimo": THINK_OR_CALL},
    samples=SAMPLES,
)
