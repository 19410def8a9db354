"""Beam: harmony's messages, with the arguments of calls in tags: `<rfl:parameter name="k">`."""

from __future__ import annotations

import msgspec

from events.formats.families import harmony
from events.formats.family import Family
from events.formats.output_format import Arguments, OutputFormat, Tools
from events.formats.samples import BREST, Sample

assert harmony.HARMONY.channels is not None
BEAM = OutputFormat(
    name="beam",
    channels=msgspec.structs.replace(harmony.HARMONY.channels, namespace=""),
    tools=Tools(
        style="tag",
        call_end="<|call|>",
        arguments=Arguments(
            style="tagged",
            name_prefix='<rfl:parameter name="',
            name_suffix='"',
            value_prefix=">\n",
            value_suffix="\n</rfl:parameter>",
            untyped="string",
        ),
        bare="never",
    ),
)

SAMPLES = {
    "beam": [
        Sample(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=tide<|channel|>analysis "
            '<|constrain|>xml<|message|><rfl:parameter name="port">\n'
            'Brest\n</rfl:parameter><rfl:parameter name="hours">\n6\n'
            "</rfl:parameter><|end|><|start|>assistant to=now<|channel|>analysis <|constrain|>xml<|message|>"
            "<|call|>",
            [("tide", {"port": "Brest", "hours": 6}), ("now", {})],
            reasoning="Hm.",
        ),
        Sample(
            '<|start|>assistant to=tide<|channel|>analysis<|message|><rfl:parameter name="port">\n'
            "Brest\n</rfl:parameter><|end|><|start|>",
            [BREST],
        ),
        Sample(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            content="Yes.",
            reasoning="Hm.",
        ),
    ],
}

FAMILY = Family(
    formats=(BEAM,),
    samples=SAMPLES,
)
