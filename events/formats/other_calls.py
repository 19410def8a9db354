"""Formats whose calls are neither JSON nor tags: Python calls, objects with bare keys, routed messages."""

from __future__ import annotations

from events.formats.output_format import Arguments, Channels, Content, JsonKeys, OutputFormat, Route, Tools
from events.formats.reasoning import REASONING

_PYTHON = Arguments(style="python", end=")")


def _python_calls(name: str, start: str, end: str, separator: str = ", ", **options: object) -> OutputFormat:
    """`[f(a=1), g(b="x")]`."""
    content = options.pop("content", Content())
    tools = Tools(
        style="tag",
        section_start=start,
        section_end=end,
        call_separator=separator,
        name_suffix="(",
        arguments=_PYTHON,
        **options,  # type: ignore[arg-type]
    )
    return OutputFormat(name=name, reasoning=REASONING["think"], content=content, tools=tools)  # type: ignore[arg-type]


def _object_calls(name: str, start: str, end: str, quote: str, **options: object) -> OutputFormat:
    """`call:f{k:<|"|>v<|"|>,n:1}`."""
    tools = Tools(
        style="tag",
        call_start=start,
        call_end=end,
        name_prefix="call:",
        name_suffix="{",
        arguments=Arguments(style="object", end="}", quote=quote, separator=",", untyped="string"),
    )
    return OutputFormat(name=name, tools=tools, **options)  # type: ignore[arg-type]


OTHER_CALLS: dict[str, OutputFormat] = {
    "lfm2": _python_calls(
        "lfm2",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        undeclared="drop",
        failed="drop",
        content=Content(after_calls="drop"),
    ),
    "pythonic": _python_calls("pythonic", "<|python_start|>[", "]<|python_end|>", bare="always"),
    "olmo3": _python_calls("olmo3", "<function_calls>\n", "\n</function_calls>", "\n"),
    "gemma4": _object_calls(
        "gemma4",
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
        reasoning=REASONING["gemma4"],
        content=Content(after_calls="drop"),
        drop=("<turn|>",),
    ),
    "functiongemma": _object_calls("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    "openai": OutputFormat(
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
    ),
    "functionary_v3_2": OutputFormat(
        name="functionary_v3_2",
        channels=Channels(
            start=(">>>",), header_end=("\n",), routes=(Route(header=">>>all\n", to="content"),), named=True
        ),
        tools=Tools(style="tag", bare="never"),
        drop=("<|eot_id|>", "<|eom_id|>"),
    ),
    "inkling": OutputFormat(
        name="inkling",
        tools=Tools(call_end="<|end_message|>", json=JsonKeys(arguments="args"), bare="never", failed="text"),
        channels=Channels(
            start=("<|message_model|>",),
            header_end=(
                "<|content_text|>",
                "<|content_thinking|>",
                "<|content_invoke_tool_json|>",
                "<|content_invoke_tool_text|>",
            ),
            end=("<|end_message|>", "<|content_model_end_sampling|>"),
            routes=(
                Route(header="<|content_text|>", to="content"),
                Route(header="<|content_thinking|>", to="reasoning"),
                Route(header="<|content_invoke_tool_json|>", to="call"),
                Route(header="<|content_invoke_tool_text|>", to="text"),
            ),
            markup=False,
            start_ends_body=False,
            starts_in_header=True,
        ),
        drop=("<|message_user|>", "<|content_audio_input|>", "<|audio_end|>"),
    ),
}
