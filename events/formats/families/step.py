"""StepFun: Step 3 writes invoke tags between special tokens, 3.5 and later Qwen3-Coder's tags."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import BREST, Sample, function_tag_samples
from events.formats.shapes import OPEN_THINK, function_tag, invoke_tags

_CALL = "<｜tool_call_begin｜>function<｜tool_sep｜>"
STEP3 = OutputFormat(
    name="step3",
    reasoning=OPEN_THINK,
    tools=invoke_tags(
        "steptml:",
        section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        call=(_CALL, "<｜tool_call_end｜>"),
    ),
    spellings=(("<｜tool_call_begin｜>", _CALL),),
)
STEP35 = OutputFormat(name="step3p5", reasoning=OPEN_THINK, tools=function_tag(), drop=("<|im_end|>",))

SAMPLES = {
    "step3": [
        Sample(
            '</think><｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="tide">'
            '<steptml:parameter name="port">Brest</steptml:parameter></steptml:invoke><｜tool_call_end｜>'
            "<｜tool_calls_end｜>",
            [BREST],
        ),
        Sample(
            "Hm.</think><｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="tide"><steptml:parameter name="port">Brest</steptml:parameter>'
            "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
            [BREST],
            reasoning="Hm.",
            prefix="<think>",
        ),
    ],
    "step3p5": [
        sample._replace(prefix=sample.prefix or "<think></think>")
        for sample in function_tag_samples("<tool_call>", "</tool_call>")
    ],
}

FAMILY = Family(
    formats=(
        STEP3,
        STEP35,
    ),
    names={"step5": "step3p5"},
    reasoning={"step3": OPEN_THINK, "step3p5": OPEN_THINK, "step5": OPEN_THINK},
    samples=SAMPLES,
)
