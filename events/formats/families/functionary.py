"""Functionary v3.2: messages are addressed to a recipient, `>>>all` for the user or `>>>NAME` for a function."""

from __future__ import annotations

from events.formats.output_format import Channels, OutputFormat, Route, Tools

NAMES = ("functionary",)
FORMAT = OutputFormat(
    name="functionary_v3_2",
    channels=Channels(start=(">>>",), header_end=("\n",), routes=(Route(header=">>>all\n", to="content"),), named=True),
    tools=Tools(style="tag", bare="never"),
    drop=("<|eot_id|>", "<|eom_id|>"),
)
