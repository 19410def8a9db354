"""Muse: messages addressed with `to=...<|message|>`, calls as invoke tags that begin with `atem:`."""

from __future__ import annotations

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Content, OutputFormat, Reasoning
from events.formats.samples import BREST, Sample, invoke_samples
from events.formats.shapes import invoke_tags

REASONING = Reasoning(start=("to=self<|message|>",), end=("<|eom|>",))
MUSE = OutputFormat(
    name="muse",
    reasoning=REASONING,
    content=Content(start=("to=user<|message|>",), end=("<|eom|>", "<|eot|>")),
    tools=invoke_tags("atem:", section=("<atem:function_calls>\n", "</atem:function_calls>")),
    drop=("<|start|>assistant",),
    address=("to=", "<|message|>"),
)

SAMPLES = {
    "muse": [
        Sample(
            " to=self<|message|>Hm.<|eom|><|start|>assistant to=tide<|message|><atem:function_calls>\n"
            '<atem:invoke name="tide">\n<atem:parameter name="port">Brest</atem:parameter>\n'
            "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Done.<|eot|>",
            [BREST],
            content="Done.",
            reasoning="Hm.",
        ),
        Sample(
            ' to=tide<|message|><atem:function_calls>\n<atem:invoke name="tide">\n'
            '<atem:parameter name="port">Brest</atem:parameter>\n</atem:invoke>\n'
            "</atem:function_calls><|eot|>",
            [BREST],
        ),
        Sample(" to=user<|message|>Set to=9 and<|eot|>", content="Set to=9 and"),
        Sample(
            ' to=tide.tide<|message|><atem:function_calls>\n<atem:invoke name="tide.tide">\n'
            '<atem:parameter name="port">Brest</atem:parameter>\n</atem:invoke>\n'
            "</atem:function_calls><|eom|>",
            [BREST],
        ),
        Sample(
            ' to=user<|message|>Write <atem:function_calls>\n<atem:invoke name="tide">\n'
            "</atem:invoke></atem:function_calls><|eom|><|start|>assistant to=now<|message|>"
            '<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n'
            "</atem:function_calls><|eot|>",
            [("now", {})],
            content=('Write <atem:function_calls>\n<atem:invoke name="tide">\n</atem:invoke></atem:function_calls>'),
        ),
        Sample(" to=self<|message|>Hm.<|eom|> to=user<|message|>Yes.<|eot|>", content="Yes.", reasoning="Hm."),
        *invoke_samples("<atem:function_calls>", "</atem:function_calls>", "atem:"),
    ],
}

FAMILY = Family(
    formats=(MUSE,),
    names={"muse_glimmer": "muse", "musespark1x": "muse"},
    reasoning={"muse": REASONING},
    signs=(
        Sign(
            name="muse",
            what="messages are addressed with to=...<|message|>",
            test=lambda evidence: " to=user<|message|>" in evidence.answer,
            apply=whole(MUSE),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
