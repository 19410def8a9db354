"""MiniCPM 5: `<function name="f"><param name="k">v</param></function>`, which is only
a call if a declared tool has the name."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import Arguments, OutputFormat, Tools
from events.formats.samples import Sample
from events.formats.shapes import THINK

MINICPM5 = OutputFormat(
    name="minicpm5",
    reasoning=THINK,
    tools=Tools(
        style="tag",
        name_prefix='<function name="',
        name_suffix='">',
        arguments=Arguments(
            style="tagged",
            name_prefix='<param name="',
            name_suffix='">',
            value_suffix="</param>",
            end="</function>",
        ),
        commit="call",
        undeclared="content",
    ),
    spellings=tuple((f'<{tag}{space}name="', f'<{tag} name="') for tag in ("function", "param") for space in ("", "Ġ")),
)

SAMPLES = {
    "minicpm5": [
        Sample(
            'So: <function name="tide"><param name="port">Brest</param><param name="hours">6</param></function> done',
            [("tide", {"port": "Brest", "hours": 6})],
            content="So:  done",
        ),
        Sample(
            '<function name="ferry"><param name="port">Brest</param></function>',
            content='<function name="ferry"><param name="port">Brest</param></function>',
        ),
    ],
}

FAMILY = Family(
    formats=(MINICPM5,),
    names={"minicpmv": "qwen3_coder"},
    samples=SAMPLES,
)
