"""Kimi K3 (XTML): `<|open|>NAME attributes<|sep|>BODY<|close|>NAME<|sep|>`, for thoughts, answer and calls."""

from __future__ import annotations

from events.formats.output_format import Arguments, Content, OutputFormat, Tools
from events.formats.reasoning import REASONING

FORMAT = OutputFormat(
    name="kimi_k3",
    reasoning=REASONING["kimi_k3"],
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
            value_prefix="<|sep|>",
            value_suffix="<|close|>argument<|sep|>",
        ),
    ),
    drop=("<|close|>message<|sep|>", "<|end_of_msg|>"),
)
