"""Mistral: `[TOOL_CALLS]NAME[CALL_ID]id[ARGS]{...}`, or a JSON list after `[TOOL_CALLS]` before version 11."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import CallId, Content, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import think

REASONING = think("[TOOL_CALLS]", start="[THINK]", end="[/THINK]")
MISTRAL = OutputFormat(
    name="mistral",
    reasoning=REASONING,
    content=Content(after_calls="drop"),
    tools=Tools(
        style="tag",
        section_start="[TOOL_CALLS]",
        name_suffix="[ARGS]",
        id=CallId(position="between", prefix="[CALL_ID]"),
        repeats_section=True,
        failed="drop",
        truncated="name",
    ),
    drop=("</s>",),
)

SAMPLES = {
    "mistral": [
        Sample(
            '[TOOL_CALLS]tide[ARGS]{"port": "Brest"}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}',
            [BREST, ("now", {})],
            ids=["", "abc123def"],
        ),
        Sample('[TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}, "id": "abc123def"}]</s>', [BREST]),
        Sample('[TOOL_CALLS] [TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST]),
        Sample("[TOOL_CALLS] 42"),
        Sample('[THINK]Look it up.[TOOL_CALLS]tide[ARGS]{"port": "Brest"}</s>', [BREST], reasoning="Look it up."),
        Sample("[THINK]Say [TOOL_CALLS] aloud?[/THINK]No.", content="No.", reasoning="Say [TOOL_CALLS] aloud?"),
    ],
}

FAMILY = Family(
    formats=(MISTRAL,),
    reasoning={"mistral": REASONING},
    samples=SAMPLES,
)
