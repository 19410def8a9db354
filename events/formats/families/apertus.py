"""Apertus: calls in one JSON list, each an object whose only key is the function's name."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import JsonKeys, OutputFormat, Reasoning
from events.formats.samples import BREST, Sample
from events.formats.shapes import listed_json

REASONING = Reasoning(
    start=("<|inner_prefix|>",),
    end=("<|inner_suffix|>",),
    ended_by=("<|tools_prefix|>[",),
    after_call="reasoning",
)
APERTUS = OutputFormat(
    name="apertus",
    reasoning=REASONING,
    tools=listed_json("<|tools_prefix|>[", "]<|tools_suffix|>", JsonKeys(array=True, name_is_key=True)),
)

SAMPLES = {
    "apertus": [
        Sample(
            "<|inner_prefix|>Hm.<|inner_suffix|>Now "
            '<|tools_prefix|>[{"tide": {"port": "Brest"}}, {"now": {}}]<|tools_suffix|>',
            [BREST, ("now", {})],
            content="Now",
            reasoning="Hm.",
        ),
        Sample(
            '<|inner_prefix|>Hm.<|tools_prefix|>[{"now": {}}]<|tools_suffix|> So late.<|inner_suffix|>Late.',
            [("now", {})],
            content="Late.",
            reasoning="Hm.So late.",
        ),
    ],
}

FAMILY = Family(
    formats=(APERTUS,),
    reasoning={"apertus2509": REASONING, "apertus": REASONING},
    samples=SAMPLES,
)
