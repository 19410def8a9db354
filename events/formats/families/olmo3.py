"""OLMo 3: Python calls, one per line, in `<function_calls>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat, Tools
from events.formats.samples import python_samples
from events.formats.shapes import PYTHON_ARGUMENTS, THINK

OLMO3 = OutputFormat(
    name="olmo3",
    reasoning=THINK,
    tools=Tools(
        style="tag",
        section_start="<function_calls>\n",
        section_end="\n</function_calls>",
        call_separator="\n",
        name_suffix="(",
        arguments=PYTHON_ARGUMENTS,
    ),
)

SAMPLES = {
    "olmo3": python_samples("<function_calls>\n", "\n</function_calls>", ""),
}

FAMILY = Family(
    formats=(OLMO3,),
    samples=SAMPLES,
)
