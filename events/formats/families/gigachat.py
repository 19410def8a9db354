"""GigaChat 3: JSON after `function call`, in a separate message."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import JsonKeys, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import OPEN_THINK, THINK

_OPENER = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GIGACHAT = OutputFormat(
    name="gigachat3",
    reasoning=THINK,
    tools=Tools(section_start=_OPENER, json=JsonKeys(arguments_required=True), bare="never"),
    spellings=(("<|function_call|>", _OPENER),),
    drop=("</s>", "<|message_sep|>"),
)

SAMPLES = {
    "gigachat3": [
        Sample(
            'One moment.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "tide", "arguments": {"port": "Brest"}}',
            [BREST],
            content="One moment.",
        )
    ],
}

FAMILY = Family(
    formats=(GIGACHAT,),
    names={"gigachat35": "gigachat3"},
    reasoning={"gigachat35": OPEN_THINK},
    samples=SAMPLES,
)
