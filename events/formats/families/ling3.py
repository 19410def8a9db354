"""Ling 3: calls in GLM's format."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import Sample, argument_tag_samples
from events.formats.shapes import THINK_OR_CALL, named_in_tag

LING3 = OutputFormat(
    name="ling3", reasoning=THINK_OR_CALL, tools=named_in_tag("\n"), drop=("<|user|>", "<|observation|>")
)

SAMPLES = {
    "ling3": [*argument_tag_samples(between="\n"), Sample("<think>Ebb.</think>Low.", content="Low.", reasoning="Ebb.")],
}

FAMILY = Family(
    formats=(LING3,),
    reasoning={"ling3": THINK_OR_CALL},
    samples=SAMPLES,
)
