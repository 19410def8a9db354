"""Inkling: `<|message_model|>NAME<|content_...|>BODY<|end_message|>`, where the last marker of the header says what the
body is. A call that is none is shown without its markers, unless the call it should have been follows."""

from __future__ import annotations

from events.formats.output_format import Channels, JsonKeys, OutputFormat, Route, Tools

ROUTES = (
    Route(header="<|content_text|>", to="content"),
    Route(header="<|content_thinking|>", to="reasoning"),
    Route(header="<|content_invoke_tool_json|>", to="call"),
    Route(header="<|content_invoke_tool_text|>", to="text"),
    Route(header="<|content_tool_error|>", to="content"),
)
FORMAT = OutputFormat(
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
