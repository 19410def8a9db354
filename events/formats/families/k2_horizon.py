"""K2 Horizon: argument tags that begin with `ifm|`, and three pairs of reasoning markers."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat, Reasoning, Tools
from events.formats.samples import Sample, argument_tag_samples
from events.formats.shapes import argument_tags

REASONING = Reasoning(
    start=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    end=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    ended_by=("<ifm|tool_call",),
    initial="reasoning",
)
K2_HORIZON = OutputFormat(
    name="k2_horizon",
    reasoning=REASONING,
    tools=Tools(
        style="tag",
        section_start="<ifm|tool_calls>",
        section_end="</ifm|tool_calls>",
        call_start="<ifm|tool_call>",
        call_end="</ifm|tool_call>",
        arguments=argument_tags("ifm|"),
    ),
)

SAMPLES = {
    "k2_horizon": [
        Sample("Hm.</ifm|think_fast>Yes.", content="Yes.", reasoning="Hm."),
        *(
            Sample(f"<ifm|tool_calls>{sample.text}</ifm|tool_calls>", sample.calls, prefix="<ifm|think></ifm|think>")
            for sample in argument_tag_samples("<ifm|tool_call>", "</ifm|tool_call>", tag="ifm|")
        ),
    ],
}

FAMILY = Family(
    formats=(K2_HORIZON,),
    reasoning={"k2_horizon": REASONING},
    samples=SAMPLES,
)
