"""Sample outputs of each family's models with their meaning. They are small, written by hand, and independent.

The tests parse each of them as a whole, character by character, and cut at random places. The functions here return
samples of shapes that several families share (`events.formats.shapes`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

TOOLS: dict[str, object] = {
    "tide": {
        "type": "object",
        "properties": {
            "port": {"type": "string"},
            "hours": {"type": "integer"},
            "metric": {"type": "boolean"},
            "extra": {"type": "object", "properties": {"depth": {"type": "number"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
        "required": ["port"],
    },
    "now": {"type": "object", "properties": {}},
}
"""The tools that a sample's request declares, by name, with the schemas of their arguments."""


class Sample(NamedTuple):
    """An output and its meaning.

    calls: (name, arguments); the arguments of a call that was cut off are text. prefix: the end of the prompt; None if
    unknown. tools: the declared tools; None if the request declares none. ids: the calls' ids, if the format has them.
    """

    text: str
    calls: list[tuple[str, Any]] = []
    content: str = ""
    reasoning: str = ""
    prefix: str | None = None
    tools: dict[str, Any] | None = TOOLS
    ids: list[str] | None = None


BREST = ("tide", {"port": "Brest"})
BOTH = [("tide", {"port": "Brest", "hours": 6}), ("now", {})]


def json_samples(start: str, end: str, arguments: str = "arguments") -> list[Sample]:
    """Return samples of a format with a tag around each JSON call."""
    one = f'{start}{{"name": "tide", "{arguments}": {{"port": "Brest"}}}}{end}'
    return [
        Sample(one, [BREST]),
        Sample(f"Let me look.\n{one}", [BREST], content="Let me look."),
        Sample(
            f'{start}{{"{arguments}": {{"port": "Brest", "hours": 6}}, "name": "tide"}}{end}{start}'
            f'{{"name": "now", "{arguments}": {{}}}}{end}',
            BOTH,
        ),
        Sample(
            f"{start}{{'name': 'tide', '{arguments}': {{'port': 'L\\'Aber', 'metric': True, 'note': None,}}}}{end}",
            [("tide", {"port": "L'Aber", "metric": True, "note": None})],
        ),
        Sample(
            f'{start}{{"name": "tide", "{arguments}": {{"port": "a {end.strip()} b {{"}}}}{end}',
            [("tide", {"port": f"a {end.strip()} b {{"})],
        ),
        Sample("A tide of 3 < 4 metres.", content="A tide of 3 < 4 metres."),
    ]


def function_tag_samples(start: str, end: str, think: str = "<think>", unthink: str = "</think>") -> list[Sample]:
    """Return samples of a format with function and parameter tags."""
    one = f"{start}\n<function=tide>\n<parameter=port>\nBrest\n</parameter>\n</function>\n{end}"
    return [
        Sample(one, [BREST]),
        Sample(f"See first.{unthink}\n\nNow:\n{one}", [BREST], content="Now:", reasoning="See first.", prefix=think),
        Sample(
            f"{start}\n<function=tide>\n<parameter=hours>\n6\n</parameter>\n"
            "<parameter=port>\n<b>\n</parameter>!\n\n</parameter>\n<parameter=extra>\n"
            f'{{"depth": 2.5}}\n</parameter>\n</function>\n{end}\n{start}\n'
            f"<function=now>\n</function>\n{end}",
            [("tide", {"hours": 6, "port": "<b>\n</parameter>!\n", "extra": {"depth": 2.5}}), ("now", {})],
        ),
        Sample(one.removeprefix(start), [BREST]),
        Sample(
            f"{start}\n<function=tide>\n<parameter=metric>False</parameter>\n"
            "<parameter=note>null</parameter>\n<parameter=tags>['x', 'y']</parameter>\n"
            f"</function>{end}",
            [("tide", {"metric": False, "note": None, "tags": ["x", "y"]})],
        ),
        Sample(f"{start}\n<function=tide>\n<parameter=port>\nBre", [("tide", {"port": "Bre"})]),
        Sample(f"{start}\n<func"),
        Sample(f"{start}\n<"),
        Sample(
            f"{start}\n<function=tide>\n<parameter=port>\nBrest\n<parameter=hours>\n"
            f"6\n</parameter>\n</function>\n{end}",
            [("tide", {"port": "Brest", "hours": 6})],
        ),
        Sample(
            f"{start}\n<function=tide>\n<parameter=port>\n<parameter=pier>\n"
            f"<parameter=port>\n</parameter>\n</function>\n{end}",
            [("tide", {"port": "<parameter=pier>\n<parameter=port>"})],
        ),
        Sample(f"{start}\n<function=tide\n<parameter=port\nBrest\n</parameter>\n</function>\n{end}", [BREST]),
        Sample(f"{start}\n<function=tide>\n<parameter=port>\nBrest\n</function>\n{end}\n{one}", [BREST, BREST]),
        Sample(f"{start}\n<function=tide>\n<parameter=port>\nBrest</function>\n", [BREST]),
        Sample(
            f"{start}\n<function=tide>\n<parameter=port>\n</function>\n{end}.\n</parameter>\n</function>{end}",
            [("tide", {"port": f"</function>\n{end}."})],
        ),
        Sample(
            f"{start}\n<function=sum>\n<parameter=a>\n1\n</parameter>\n</function>\n{end}",
            [("sum", {"a": "1"})],
            tools=None,
        ),
    ]


def argument_tag_samples(
    start: str = "<tool_call>", end: str = "</tool_call>", between: str = "", tag: str = ""
) -> list[Sample]:
    """Return samples of a format with tagged keys and values."""

    def argument(key: str, value: str) -> str:
        return f"<{tag}arg_key>{key}</{tag}arg_key><{tag}arg_value>{value}</{tag}arg_value>"

    return [
        Sample(f"{start}tide{between}{argument('port', 'Brest')}{end}", [BREST]),
        Sample(
            f"{start}tide{between}\n{argument('port', '  Brest ')}\n{argument('hours', '6')}\n"
            f"{end}{start}now{between}{end}",
            [("tide", {"port": "  Brest ", "hours": 6}), ("now", {})],
        ),
        Sample(
            f"{start}tide{between}{argument('port', '42')}{argument('extra', '{oops')}{end}",
            [("tide", {"port": "42", "extra": "{oops"})],
        ),
        Sample(
            f"{start}tide{between}<{tag}arg_key>hours</{tag}arg_key><{tag}arg_value>6{end}{start}now{between}{end}",
            [("tide", {"hours": 6}), ("now", {})],
        ),
    ]


def invoke_samples(start: str, end: str, tag: str = "") -> list[Sample]:
    """Return samples of a format with invoke and parameter tags."""
    one = f'<{tag}invoke name="tide">\n<{tag}parameter name="port">Brest</{tag}parameter>\n</{tag}invoke>'
    two = f'<{tag}invoke name="now">\n</{tag}invoke>'
    return [
        Sample(f"{start}\n{one}\n{end}", [BREST]),
        Sample(f"On it.{start}\n{one}\n{two}\n{end}", [BREST, ("now", {})], content="On it."),
        Sample(f"{start}\n{one}\n{end}".replace(f"</{tag}parameter>\n", ""), [BREST]),
    ]


def python_samples(start: str, end: str, brackets: str = "[]") -> list[Sample]:
    """Return samples of a format with Python calls. brackets: "" if the calls are not in a list."""
    left, right = brackets[:1], brackets[1:]
    return [
        Sample(f"{start}{left}tide(port='Brest'){right}{end}", [BREST]),
        Sample(f'{start}{left}tide(port="Brest", hours=6){"," if left else chr(10)} now(){right}{end}', BOTH),
        Sample(
            f"{start}{left}tide(port='L\\'Aber ]', metric=True, note=None, tags=['a', 'b'], extra={{'depth': "
            f"2.5}}){right}{end}",
            [("tide", {"port": "L'Aber ]", "metric": True, "note": None, "tags": ["a", "b"], "extra": {"depth": 2.5}})],
        ),
    ]
