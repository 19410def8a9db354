"""GLM 4.5 and later: `<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`, with line breaks
up to 4.6."""

from __future__ import annotations

from events.formats.family import Family, explained
from events.formats.output_format import OutputFormat
from events.formats.samples import Sample, argument_tag_samples
from events.formats.shapes import THINK_OR_CALL, named_in_tag

_NEXT_TURN = ("<|user|>", "<|observation|>")
GLM45 = OutputFormat(name="glm45", reasoning=THINK_OR_CALL, tools=named_in_tag("\n"), drop=_NEXT_TURN)
GLM47 = OutputFormat(name="glm47", reasoning=THINK_OR_CALL, tools=named_in_tag(), drop=_NEXT_TURN)

SAMPLES = {
    "glm45": [
        *argument_tag_samples(between="\n"),
        Sample("More<tool_call>now\n</tool_call>", [("now", {})], reasoning="More", prefix="<think>"),
    ],
    "glm47": argument_tag_samples(),
}

FAMILY = Family(
    formats=(
        GLM45,
        GLM47,
    ),
    names={"glm": "glm45"},
    reasoning={"glm45": THINK_OR_CALL, "glm47": THINK_OR_CALL},
    signs=(explained(GLM45, "<tool_call>", "<arg_key>", "<arg_value>"),),
    samples=SAMPLES,
)
