"""Gemma 4: `<|tool_call>call:f{k:<|"|>v<|"|>,n:1}<tool_call|>`, strings between quotes of their own, and a channel for
thoughts. A bare value without a schema is a string."""

from __future__ import annotations

from events.formats.output_format import Arguments, Content, OutputFormat, Tools
from events.formats.reasoning import REASONING


def object_calls(start: str, end: str, quote: str) -> Tools:
    """Calls whose arguments are an object with bare keys."""
    return Tools(
        style="tag",
        call_start=start,
        call_end=end,
        name_prefix="call:",
        name_suffix="{",
        arguments=Arguments(style="object", end="}", quote=quote, separator=",", untyped="string"),
    )


FORMAT = OutputFormat(
    name="gemma4",
    reasoning=REASONING["gemma4"],
    content=Content(after_calls="drop"),
    tools=object_calls("<|tool_call>", "<tool_call|>", '<|"|>'),
    drop=("<turn|>",),
)
