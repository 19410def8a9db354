"""Beam: harmony's messages, with the arguments of calls in tags of their own: `<rfl:parameter name="k">`."""

from __future__ import annotations

import msgspec

from events.formats.families import harmony
from events.formats.output_format import Arguments, OutputFormat, Tools

assert harmony.FORMAT.channels is not None
FORMAT = OutputFormat(
    name="beam",
    channels=msgspec.structs.replace(harmony.FORMAT.channels, namespace=""),
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
