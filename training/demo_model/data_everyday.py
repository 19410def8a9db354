"""Tools as applications really declare them, with requests in which the arguments' names are not said.

`phrases/tools.txt` has a line for each tool: its names, then its arguments as `names:type:kind of value`; below it the
requests, in which `{0}` is the first argument's value. A tool belongs with all of its names to one side of the split.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from training.demo_model.data_phrases import FOLDER, choose, read_sections
from training.demo_model.data_requests import Request
from training.demo_model.data_tools import ToolDefinition, define
from training.demo_model.data_values import Values, is_held_out

HEADER = re.compile(r"\[([^\]]+)\](.*)")


class Argument(NamedTuple):
    """The names that an argument may have, its type, and the kind of its value."""

    names: tuple[str, ...]
    type: str
    kind: str


class Everyday(NamedTuple):
    """A tool's names, arguments and requests."""

    names: tuple[str, ...]
    arguments: tuple[Argument, ...]
    requests: tuple[str, ...]


@cache
def everyday_tools(held_out: bool) -> tuple[Everyday, ...]:
    """Read the tools of one side of the split."""
    found: list[tuple[str, str, list[str]]] = []
    for line in (FOLDER / "tools.txt").read_text(encoding="utf-8").splitlines():
        if head := HEADER.fullmatch(line):
            found.append((head[1], head[2], []))
        elif line:
            found[-1][2].append(line)
    return tuple(_tool(*parts) for parts in found if is_held_out(parts[0].split("|")[0]) is held_out)


def _tool(names: str, arguments: str, requests: list[str]) -> Everyday:
    split = (argument.split(":") for argument in arguments.split())
    return Everyday(
        tuple(names.split("|")),
        tuple(Argument(tuple(keys.split("/")), kind, value) for keys, kind, value in split),
        tuple(requests),
    )


def _listed(values: Values, kind: str) -> str:
    return values.pick(next(section.whole for section in read_sections("kinds") if section.name == kind))


def _email(values: Values) -> str:
    return f"{values.person().lower()}@{values.word()}.{values.pick(('com', 'org', 'net'))}"


def _time(values: Values) -> str:
    if values.chance(0.3):
        return _listed(values, "time")
    hour = values.between(1, 12)
    return values.pick((f"{hour}pm", f"{hour} pm", f"{hour}am", f"{hour}:{values.pick(('00', '15', '30', '45'))}"))


def _path(values: Values) -> str:
    name = f"{values.word()}.{values.pick(('txt', 'md', 'csv', 'json', 'py', 'log'))}"
    return values.pick((name, name, f"{values.word()}/{name}", f"/{values.word()}/{values.word()}"))


def _ticker(values: Values) -> str:
    if values.chance(0.5):
        return values.word().title()
    return values.invented(lambda: values.letters(2, 4)).upper()


def _square(values: Values) -> str:
    return f"{values.pick('abcdefgh')}{values.between(1, 8)}"


VALUES: dict[str, Callable[[Values], object]] = {
    "city": lambda values: values.city(),
    "person": lambda values: values.person(),
    "word": lambda values: values.word(),
    "words": lambda values: values.words(2, 4) if values.chance(0.6) else values.topic(),
    "topic": lambda values: values.topic(),
    "color": lambda values: values.color(),
    "few": lambda values: values.between(2, 20),
    "number": lambda values: values.between(1, 500),
    "big": lambda values: int(values.invented(lambda: str(values.between(100, 99999)))),
    "decimal": lambda values: values.between(1, 999) / 10,
    "time": _time,
    "date": lambda values: _listed(values, "date"),
    "language": lambda values: (
        _listed(values, "language").title() if values.chance(0.4) else _listed(values, "language")
    ),
    "currency": lambda values: _listed(values, "currency"),
    "unit": lambda values: _listed(values, "unit"),
    "room": lambda values: _listed(values, "room"),
    "size": lambda values: _listed(values, "size"),
    "priority": lambda values: _listed(values, "priority"),
    "env": lambda values: _listed(values, "env"),
    "email": _email,
    "path": _path,
    "url": lambda values: f"https://{values.word()}.{values.pick(('com', 'org'))}/{values.word()}",
    "ticker": _ticker,
    "square": _square,
    "switch": lambda values: values.chance(0.5),
}


def _spoken(kind: str, value: object) -> str:
    return ("off", "on")[bool(value)] if kind == "switch" else str(value)


def _styled_name(values: Values, name: str) -> str:
    """Return the name in the way that programs write names."""
    form = values.rng.random()
    first, *rest = name.split("_")
    if form < 0.7 or not rest:
        return name
    return first + "".join(part.title() for part in rest) if form < 0.92 else name.replace("_", "-")


def everyday_tool(values: Values) -> tuple[ToolDefinition, Callable[[], Request]]:
    """Return such a tool and a maker of requests that its schema answers."""
    tool = values.pick(everyday_tools(values.held_out))
    name = _styled_name(values, values.pick(tool.names))
    keys = [values.pick(argument.names) for argument in tool.arguments]
    order = list(range(len(keys)))
    if values.chance(0.3):  # a schema may list the arguments in another order than the request
        values.rng.shuffle(order)

    def ask() -> Request:
        drawn = [VALUES[argument.kind](values) for argument in tool.arguments]
        shown = [_spoken(argument.kind, value) for argument, value in zip(tool.arguments, drawn, strict=True)]
        question = choose(values, values.pick(tool.requests)).format(*shown)
        return Request(name, question, {keys[at]: drawn[at] for at in order}, f"The user asks for {name}.")

    return define(name, {keys[at]: tool.arguments[at].type for at in order}), ask


def everyday_request(values: Values) -> tuple[ToolDefinition, Request]:
    """Return such a tool and a request that its schema answers."""
    tool, ask = everyday_tool(values)
    return tool, ask()
