"""gpt-oss (harmony): `<|start|>assistant<|channel|>NAME to=functions.f <|constrain|>json<|message|>BODY<|end|>`."""

from __future__ import annotations

from events.formats.output_format import Channels, OutputFormat, Route, Tools

NAMES = ("gpt_oss", "harmony")
FORMAT = OutputFormat(
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
    ),
    tools=Tools(style="tag", call_end="<|call|>", bare="never"),
)
