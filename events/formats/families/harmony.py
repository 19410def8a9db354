"""gpt-oss (harmony): `<|start|>assistant<|channel|>NAME to=functions.f <|constrain|>json<|message|>BODY<|end|>`."""

from __future__ import annotations

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Channels, OutputFormat, Reasoning, Route, Tools
from events.formats.samples import BREST, Sample

REASONING = Reasoning(start=("<|channel|>analysis<|message|>",), end=("<|end|>",))
HARMONY = OutputFormat(
    name="openai",
    channels=Channels(
        start=("<|start|>", "<|channel|>"),
        header_end=("<|message|>",),
        end=("<|end|>", "<|call|>", "<|return|>"),
        routes=(
            Route(header="final", to="content"),
            Route(header="analysis", to="reasoning"),
            Route(header="commentary", to="content"),
        ),
        recipient="to=",
        namespace="functions.",
        content_type="<|constrain|>",
    ),
    tools=Tools(style="tag", call_end="<|call|>", bare="never"),
)

SAMPLES = {
    "openai": [
        Sample(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port": "Brest"}<|call|>',
            [BREST],
            reasoning="Hm.",
        ),
        Sample(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            content="Yes.",
            reasoning="Hm.",
        ),
        Sample('<|channel|>commentary to=functions.tide<|constrain|>json<|message|>{"port": "Brest"}<|call|>', [BREST]),
        Sample('<|channel|>commentary to=functions.tide <|constrain|>json{"port": "Brest"}<|call|>', [BREST]),
        Sample(
            '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final {"answer": 4}<|return|>',
            content='{"answer": 4}',
            reasoning="Hm.",
        ),
        Sample(
            "<|channel|>commentary to=browser.search<|message|>x<|call|><|start|>assistant<|channel|>final"
            "<|message|>Yes.",
            content="Yes.",
        ),
        Sample(
            "<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary"
            "<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary<|channel|>final"
            "<|message|>final<|return|>final say",
            [("now", {}), ("now", {})],
            content="finalfinal say",
        ),
    ],
}

FAMILY = Family(
    formats=(HARMONY,),
    names={"gpt_oss": "openai", "harmony": "openai"},
    reasoning={"gpt-oss": REASONING, "openai": REASONING, "openai_gptoss": REASONING},
    signs=(
        Sign(
            name="openai",
            what="messages carry a channel in a header: <|channel|>...<|message|>",
            test=lambda evidence: evidence.everywhere("<|channel|>", "<|message|>"),
            apply=whole(HARMONY),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
