"""Gemma 4: `<|tool_call>call:f{k:<|"|>v<|"|>,n:1}<tool_call|>`, strings between special quotes, and a channel for
reasoning. A value without quotes and without a schema is a string."""

from __future__ import annotations

import msgspec

from events.formats.family import Family, Sign, whole
from events.formats.output_format import Content, OutputFormat, Reasoning
from events.formats.samples import BREST, Sample
from events.formats.shapes import bare_key_objects

REASONING = Reasoning(
    start=("<|channel>thought\n", "<|channel>thought", "<|channel>"),
    end=("<channel|>",),
    ended_by=("<|tool_call>",),
)
_TOOLS = bare_key_objects("<|tool_call>", "<tool_call|>", '<|"|>')
GEMMA = OutputFormat(
    name="gemma4",
    reasoning=REASONING,
    content=Content(after_calls="drop"),
    tools=_TOOLS,
    drop=("<turn|>",),
)
# For models with a known template: it quotes every string, so a value without quotes is not one, and it writes text
# after calls.
_QUOTING = msgspec.structs.replace(
    GEMMA,
    content=Content(),
    tools=msgspec.structs.replace(_TOOLS, arguments=msgspec.structs.replace(_TOOLS.arguments, untyped="json")),
)


SAMPLES = {
    "gemma4": [
        Sample(
            '<|channel>thought\nHm.<channel|>Ok. <|tool_call>call:tide{port:<|"|>Brest, "F"'
            '<|"|>,hours:6,tags:[<|"|>x<|"|>],extra:{depth:2.5}}<tool_call|>',
            [("tide", {"port": 'Brest, "F"', "hours": 6, "tags": ["x"], "extra": {"depth": 2.5}})],
            content="Ok.",
            reasoning="Hm.",
        ),
        Sample("<|tool_call>call:now{}<tool_call|><|tool_call>call:tide{port:Brest}<tool_call|>", [("now", {}), BREST]),
        Sample(
            '<|tool_call>call:tide{port:<|"|>Brest}<tool_call|><|tool_call>call:tide{port:<|"|>Nantes<|"|>}'
            "<tool_call|>",
            [("tide", {"port": "Brest"}), ("tide", {"port": "Nantes"})],
        ),
        Sample('<|tool_call>call:tide{port:{of:[<|"|>f(x)}]}}<tool_call|>', [("tide", {"port": {"of": ["f(x)"]}})]),
        Sample('<|tool_call>call:tide{port:<|"|>Brest )', [("tide", {"port": "Brest "})]),
        Sample('<|tool_call>call:tide{port:<|"|>f(x)', [("tide", {"port": "f(x)"})]),
        Sample('<|tool_call>call:tide{port:<|"|>Brest  ', [("tide", {"port": "Brest"})]),
        Sample('<|tool_call>call:tide{port:<|"|>Brest  <|"|>}<tool_call|>', [("tide", {"port": "Brest  "})]),
        # Markers in a value, where they are text and not tokens.
        Sample(
            '<|tool_call>call:tide{port:<|"|>of <tool_call|> and <|"|> or <|tool_call><|"|>,hours:6}<tool_call|>',
            [("tide", {"port": 'of <tool_call|> and <|"|> or <|tool_call>', "hours": 6})],
        ),
        Sample('<|tool_call>:tide(port:<|"|>Brest<|"|>)<tool_call|>', [("tide", {"port": "Brest"})]),
        Sample(
            '<|tool_call>call:tide{port:Brest, harbour 5<|"|>,hours:6,tags:[<|"|>x<|"|>,y<|"|>]}<tool_call|>',
            [("tide", {"port": "Brest, harbour 5", "hours": 6, "tags": ["x", "y"]})],
        ),
        Sample(
            '<|tool_call>call:tide{extra:{of:the, sea<|"|>},hours:6}<tool_call|>',
            [("tide", {"extra": {"of": "the, sea"}, "hours": 6})],
        ),
    ],
}

FAMILY = Family(
    formats=(GEMMA,),
    reasoning={"gemma4": REASONING},
    signs=(
        Sign(
            name="gemma4",
            what='strings of a call stand between <|"|>, reasoning is a channel of its own',
            test=lambda evidence: '<|"|>' in evidence.call and "<|tool_call>call:" in evidence.call,
            apply=whole(_QUOTING),
            used_for="the whole output",
        ),
    ),
    samples=SAMPLES,
)
