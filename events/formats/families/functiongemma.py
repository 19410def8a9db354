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
        ),
        Sample(
            "<start_function_call>call:tide{port:<escape>5<escape>,hours:<escape>6<escape>,metric:<escape>True<escape>,"
            "extra:<escape>{'depth': 2.5}<escape>,note:<escape>None<escape>}<end_function_call>",
            [("tide", {"port": "5", "hours": 6, "metric": True, "extra": {"depth": 2.5}, "note": "None"})],
        ),
        Sample(
            "<start_function_call>call:tide{hours:<escape>many<escape>}<end_function_call>",
            [("tide", {"hours": "many"})],
        ),
    ],
}

FAMILY = Family(
    formats=(FUNCTIONGEMMA,),
    samples=SAMPLES,
)
