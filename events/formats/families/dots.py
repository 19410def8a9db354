"""dots (rednote): invoke and parameter tags in `<dots_function_call>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import invoke_samples
from events.formats.shapes import THINK_OR_CALL, invoke_tags

DOTS = OutputFormat(
    name="dots",
    reasoning=THINK_OR_CALL,
    tools=invoke_tags(section=("<dots_function_call>\n", "</dots_function_call>")),
)

SAMPLES = {
    "dots": invoke_samples("<dots_function_call>", "</dots_function_call>"),
}

FAMILY = Family(
    formats=(DOTS,),
    reasoning={"dots": THINK_OR_CALL},
    samples=SAMPLES,
)
