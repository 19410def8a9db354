"""Poolside Laguna: calls in GLM's format; an unfinished call without arguments is dropped."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import argument_tag_samples
from events.formats.shapes import THINK_OR_CALL, named_in_tag

POOLSIDE = OutputFormat(
    name="poolside_v1",
    reasoning=THINK_OR_CALL,
    tools=named_in_tag("\n", truncated="drop"),
    drop=("<|user|>", "<|observation|>"),
)

SAMPLES = {
    "poolside_v1": argument_tag_samples(between="\n"),
}

FAMILY = Family(
    formats=(POOLSIDE,),
    reasoning={"poolside_v1": THINK_OR_CALL},
    samples=SAMPLES,
)
