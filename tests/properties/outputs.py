"""Random outputs of every format, for properties and fuzzing: markers whole, cut and shuffled, text, flipped bytes."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from events.formats.output_format import OutputFormat, markers
from events.formats.registry import FORMATS
from events.lifecycle import Verifier
from events.parsing.policy import Policy
from events.translator import Translator
from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    ToolCallArgs,
)

NAMES = tuple(FORMATS)
TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}},
    "g": None,
}
WORDS = (
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {"a": "x y"}}', "f", "g", '{"a": 1}', "{", "}",
    "[", "]", '"', "a", "=", "(", ")", "f(a=1)", "\\", "\n", " ", "x < y", "<", "|", "text", "null", "True", ":", ",",
    '{"a": [1, {"b": "c"}]}', "functions.f:0", "to=", "all", "json", '"a": ', "'", "é", "😀", "\ud800", "call:", "1",
    '[{"name": "f", "arguments": {}}]', "\x00", "\u2028",
)  # fmt: skip


class Output(NamedTuple):
    """One output and how it is to be read."""

    name: str
    text: str
    policy: Policy
    opened: str | None


def random_text(output_format: OutputFormat, generator: random.Random) -> str:
    known = markers(output_format) or ("",)
    parts = []
    for _ in range(generator.randint(1, 14)):
        kind = generator.random()
        if kind < 0.5:
            parts.append(generator.choice(known))
        elif kind < 0.6:
            marker = generator.choice(known)
            parts.append(marker[: generator.randint(0, len(marker))])
        else:
            parts.append(generator.choice(WORDS))
    text = "".join(parts)
    return flipped(text, generator) if generator.random() < 0.2 else text


def flipped(text: str, generator: random.Random) -> str:
    """The text with some of its bytes changed."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(generator.randint(1, 4)):
        if data:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return data.decode("utf-8", "replace")


def random_output(number: int, generator: random.Random) -> Output:
    name = NAMES[number % len(NAMES)]
    known = markers(FORMATS[name]) or ("",)
    pick = generator.choice
    policy = Policy(
        tools=pick([None, TOOLS, TOOLS, {}]),
        extract_reasoning=generator.random() < 0.8,
        boundaries=pick([None, "strict", "lenient"]),
        parallel=generator.random() < 0.8,
        failed=pick([None, None, "content", "text", "drop", "call", "error"]),
        undeclared=pick([None, "keep", "drop", "content"]),
        bare=pick([None, "never", "declared", "always"]),
    )
    return Output(name, random_text(FORMATS[name], generator), policy, pick([None, "", pick(known)]))


def events_of(output: Output, pieces: list[str]) -> list[Event]:
    counter = itertools.count()
    translator = Translator(
        FORMATS[output.name],
        tools=None,
        opened=output.opened,
        new_id=lambda kind: f"{kind}{next(counter)}",
        policy=output.policy,
    )
    return [event for piece in pieces for event in translator.feed(piece)] + translator.finish()


def joined(events: list[Event]) -> list[Any]:
    """The events with neighbouring deltas of one kind as one."""
    result: list[Any] = []
    for event in events:
        if isinstance(event, TextMessageContent | ReasoningMessageContent | ToolCallArgs):
            if result and isinstance(result[-1], list) and result[-1][0] is type(event):
                result[-1][1] += event.delta
            else:
                result.append([type(event), event.delta])
        else:
            result.append(event)
    return result


def check_lifecycle(events: list[Event]) -> None:
    """Raise LifecycleError unless a run may consist of these events."""
    verifier = Verifier(strict=True)
    verifier.check(RunStarted(thread_id="t", run_id="r"))
    for event in events:
        verifier.check(event)
    if not any(isinstance(event, RunError) for event in events):
        verifier.check(RunFinished(thread_id="t", run_id="r"))
