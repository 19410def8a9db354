"""Inkling: `<|message_model|>NAME<|content_...|>BODY<|end_message|>`, where the last marker of the header determines
the kind of body. An invalid call is shown without its markers, unless a valid one follows."""

from __future__ import annotations

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Channels, JsonKeys, OutputFormat, Reasoning, Route, Tools
from events.formats.samples import BREST, Sample

REASONING = Reasoning(start=("<|content_thinking|>",), end=("<|end_message|>",))
ROUTES = (
    Route(header="<|content_text|>", to="content"),
    Route(header="<|content_thinking|>", to="reasoning"),
    Route(header="<|content_invoke_tool_json|>", to="call"),
    Route(header="<|content_invoke_tool_text|>", to="text"),
    Route(header="<|content_tool_error|>", to="content"),
)
INKLING = OutputFormat(
    name="inkling",
    channels=Channels(
        start=("<|message_model|>",),
        header_end=tuple(route.header for route in ROUTES),
        end=("<|end_message|>", "<|content_model_end_sampling|>"),
        routes=ROUTES,
        markup=False,
        start_ends_body=False,
        starts_in_header=True,
    ),
    tools=Tools(call_end="<|end_message|>", json=JsonKeys(arguments="args"), bare="never", failed="text"),
    drop=("<|message_user|>", "<|content_audio_input|>", "<|audio_end|>"),
)

SAMPLES = {
    "inkling": [
        Sample(
            "<|message_model|><|content_thinking|>Hm.<|end_message|><|message_model|>tide"
            '<|content_invoke_tool_json|>{"name": "tide", "args": {"port": "Brest"}}<|end_message|>',
            [BREST],
            reasoning="Hm.",
        ),
        Sample("<|content_text|>Hello there.<|end_message|>", content="Hello there."),
        Sample("<|content_tool_error|>No such port.<|end_message|>", content="No such port."),
        Sample(
            'search<|content_invoke_tool_text|>the "web"\n<|end_message|>',
            [("search", {"text": 'the "web"\n'})],
            tools=None,
        ),
        Sample("<|content_invoke_tool_text|>the web<|end_message|>", content="the web", tools=None),
    ],
}

FAMILY = Family(
    formats=(INKLING,),
    reasoning={"inkling": REASONING},
    signs=(
        Sign(
            name="inkling",
            what="messages begin with <|content_...|>",
            test=lambda evidence: evidence.everywhere("<|content_", "<|end_message|>"),
            apply=whole(INKLING),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
