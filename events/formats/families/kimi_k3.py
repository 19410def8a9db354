"""Kimi K3 (XML): `<|open|>NAME attributes<|sep|>BODY<|close|>NAME<|sep|>`, for reasoning, answer and calls."""

from __future__ import annotations

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Arguments, Content, OutputFormat, Reasoning, Tools
from events.formats.samples import Sample

REASONING = Reasoning(
    start=("<|open|>think<|sep|>",),
    end=("<|close|>think<|sep|>", "<|close|>think"),
    ended_by=("<|open|>tools<|sep|>",),
)
KIMI_K3 = OutputFormat(
    name="kimi_k3",
    reasoning=REASONING,
    content=Content(
        start=("<|open|>response<|sep|>",),
        end=("<|close|>response<|sep|>",),
        after_calls="drop",
    ),
    tools=Tools(
        style="tag",
        section_start="<|open|>tools<|sep|>",
        section_end="<|close|>tools<|sep|>",
        call_start="",
        call_end="<|close|>call<|sep|>",
        name_prefix='<|open|>call tool="',
        name_suffix='" index="{index}"<|sep|>',
        name_entities=True,
        arguments=Arguments(
            style="tagged",
            name_prefix='<|open|>argument key="',
            name_suffix='"',
            type_prefix=' type="',
            type_suffix='"',
            type_words="names",
            value_prefix="<|sep|>",
            value_suffix="<|close|>argument<|sep|>",
        ),
    ),
    drop=("<|close|>message<|sep|>", "<|end_of_msg|>"),
)


def _element(name: str, attributes: str = "", body: str = "") -> str:
    return f"<|open|>{name}{attributes}<|sep|>{body}<|close|>{name}<|sep|>"


SAMPLES = {
    "kimi_k3": [
        Sample(
            _element("think", body="Ask.")
            + _element("response", body="Sure.")
            + _element(
                "tools",
                body=_element(
                    "call",
                    ' tool="tide" index="1"',
                    _element("argument", ' key="port" type="string"', "Brest")
                    + _element("argument", ' key="hours" type="number"', "6"),
                ),
            ),
            [("tide", {"port": "Brest", "hours": 6})],
            content="Sure.",
            reasoning="Ask.",
        )
    ],
}

FAMILY = Family(
    formats=(KIMI_K3,),
    reasoning={"kimi_k3": REASONING},
    signs=(
        Sign(
            name="kimi_k3",
            what="elements are written with <|open|>, <|sep|> and <|close|>",
            test=lambda evidence: evidence.everywhere("<|open|>", "<|sep|>", "<|close|>"),
            apply=whole(KIMI_K3),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
