"""The public surface of `agent_server`: names, signatures and documentation that users may depend on.

A change of tests/public_api.txt is a change for users: it belongs into the changelog, and a name that goes warns for one
minor version first. Write the file anew with `python -m tests.test_public_api > tests/public_api.txt`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_server

SURFACE = Path(__file__).with_name("public_api.txt")
BARE = ("ServerModel", "Settings", "ToolLimits")
"""The fields of settings are in docs/settings.md, which has a test of its own; those of a model are LangChain's."""
OPTIONAL = ("ServerModel", "openai_client", "pydantic_ai_model")
"""Public, and importable with their extras alone."""


def lines() -> Iterator[str]:
    for name in sorted([*agent_server.__all__, *OPTIONAL]):
        value = getattr(agent_server, name)
        if name in BARE:
            yield f"class {name}"
        elif inspect.isclass(value):
            yield f"class {name}{_signature(value)}"
            for member in sorted(_members(value)):
                yield f"    {member}{_signature(getattr(value, member))}"
        else:
            yield f"def {name}{_signature(value)}"


def _members(value: type) -> list[str]:
    """Public methods and properties that this project's classes define."""
    own = [each for each in value.__mro__ if each.__module__.startswith("agent_server.")]
    return [
        name
        for name in {name for each in own for name in vars(each)}
        if not name.startswith("_") and (callable(getattr(value, name)) or isinstance(vars(value).get(name), property))
    ]


def _signature(value: object) -> str:
    """The parameters' names; annotations are written differently by different Python versions."""
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    shown: list[str] = []
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        shown.append(f"{stars}{each.name}" + ("" if each.default is each.empty else "=…"))
    return f"({', '.join(shown)})"


def test_the_public_surface_is_the_one_on_record():
    assert "\n".join(lines()) + "\n" == SURFACE.read_text("utf-8"), __doc__


def test_the_reference_has_every_public_name():
    page = (SURFACE.parents[1] / "docs" / "reference" / "python.md").read_text("utf-8")
    shown = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")}
    assert shown == {*agent_server.__all__, *OPTIONAL}


@pytest.mark.parametrize("name", [*agent_server.__all__, *OPTIONAL])
def test_a_public_name_is_documented(name: str):
    value = getattr(agent_server, name)
    assert inspect.getdoc(value), name
    if inspect.isclass(value) and name not in BARE:
        assert [each for each in _members(value) if not inspect.getdoc(getattr(value, each))] == []


if __name__ == "__main__":
    print("\n".join(lines()))
