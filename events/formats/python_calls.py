"""Formats whose calls are neither JSON nor tags: Python calls."""

from __future__ import annotations

from events.formats.output_format import Arguments, Content, OutputFormat, Tools
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


PYTHON_CALLS: dict[str, OutputFormat] = {
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
}
