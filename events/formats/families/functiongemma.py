"""FunctionGemma: `<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import Sample
from events.formats.shapes import bare_key_objects

FUNCTIONGEMMA = OutputFormat(
    name="functiongemma", tools=bare_key_objects("<start_function_call>", "<end_function_call>", "<escape>")
)

SAMPLES = {
    "functiongemma": [
        Sample(
            "<start_function_call>call:tide{port:<escape>Brest<escape>,metric:true}<end_function_call>",
            [("tide", {"port": "Brest", "metric": True})],
        )
    ],
}

FAMILY = Family(
    formats=(FUNCTIONGEMMA,),
    samples=SAMPLES,
)
