"""FunctionGemma: `<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>`."""

from __future__ import annotations

from events.formats.families.gemma import object_calls
from events.formats.output_format import OutputFormat

FORMAT = OutputFormat(
    name="functiongemma", tools=object_calls("<start_function_call>", "<end_function_call>", "<escape>")
)
