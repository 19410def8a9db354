"""Formats by name, as users of other servers know them, and families by their signs in a chat template.

The analysis of the chat template comes first; a name overrides it, separately for reasoning and tools. Everything here
is collected from the modules of `events.formats.families`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import msgspec

from events.formats import families
from events.formats.family import Family, Sign
from events.formats.output_format import OutputFormat, Reasoning
from events.formats.samples import Sample


def _load_families() -> Iterator[Family]:
    """Import the modules of `events.formats.families`. Raises TypeError for a module without a `FAMILY`."""
    for module in iter_modules(families.__path__):
        family = getattr(import_module(f"{families.__name__}.{module.name}"), "FAMILY", None)
        if not isinstance(family, Family):
            raise TypeError(f"events.formats.families.{module.name} must define FAMILY, a Family")
        yield family


FAMILIES: tuple[Family, ...] = tuple(_load_families())
FORMATS: Mapping[str, OutputFormat] = MappingProxyType(
    {output_format.name: output_format for family in FAMILIES for output_format in family.formats}
)
SAMPLES: Mapping[str, Sequence[Sample]] = MappingProxyType(
    {name: samples for family in FAMILIES for name, samples in family.samples.items()}
)
SIGNS: tuple[Sign, ...] = tuple(sign for family in FAMILIES for sign in family.signs)


def _normal(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(".", "_")


_BY_NAME = {_normal(name): output_format for name, output_format in FORMATS.items()} | {
    _normal(alias): FORMATS[target] for family in FAMILIES for alias, target in family.names.items()
}
_REASONING_BY_NAME = {_normal(name): reasoning for family in FAMILIES for name, reasoning in family.reasoning.items()}


def named(name: str) -> OutputFormat:
    """Return the format with this name. A name for reasoning alone selects it together with the most common calls.
    Raises KeyError, which lists the known names."""
    normal = _normal(name)
    if normal in _BY_NAME:
        return _BY_NAME[normal]
    if normal in _REASONING_BY_NAME:
        return OutputFormat(name=name, reasoning=_REASONING_BY_NAME[normal], tools=FORMATS["hermes"].tools)
    raise KeyError(f"no format is called {name!r}; known: {', '.join(sorted(_BY_NAME))}")


def reasoning_named(name: str) -> Reasoning | None:
    """Return the reasoning with this name, or that of the format with this name."""
    normal = _normal(name)
    return _REASONING_BY_NAME[normal] if normal in _REASONING_BY_NAME else named(name).reasoning


def select(
    base: OutputFormat, *, reasoning_parser: str | None = None, tool_call_parser: str | None = None
) -> OutputFormat:
    """Replace reasoning and tool calls of `base` by those of the named formats."""
    if tool_call_parser:
        call_format = named(tool_call_parser)
        reasoning = base.reasoning if base.reasoning and not reasoning_parser else call_format.reasoning
        base = msgspec.structs.replace(call_format, reasoning=reasoning, message_start=base.message_start)
    if reasoning_parser:
        base = msgspec.structs.replace(base, reasoning=reasoning_named(reasoning_parser))
    return base
