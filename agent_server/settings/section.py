"""What a section of the settings is, and how flat options become sections.

An operator writes flat names (`AGENT_SERVER_ENGINE_CONNECT`, `--redis`); a room of the server is handed a section, a
frozen model with its own names. A field of a section is one option: its name is the option's, with the section's prefix
in front, unless `Option` says another. So a new setting is one line in its section.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_FILE = ".env"


class Option(NamedTuple):
    """In a field's annotation: the option that it is read from, if its name is another. Several sections may read the
    same option."""

    name: str


FIXED = Option("")
"""In the annotation of a field that is no option: code sets it, or nothing does."""


class Section(BaseModel):
    """Settings that belong together. A model of its own: no environment is read when one is made in code."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    title: ClassVar[str] = ""
    """The heading in docs/settings.md."""
    prefix: ClassVar[str] = ""
    """What the options' names have in front of the fields'."""


class OptionPlace(NamedTuple):
    """Where an option arrives: the names that lead from a model to the field."""

    option: str
    path: tuple[str, ...]
    section: type[Section]
    field: FieldInfo


def places(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[OptionPlace]:
    """Every option of a model's sections, and of sections inside of sections."""
    for name, field in model.model_fields.items():
        path = (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from places(field.annotation, path)
        elif issubclass(model, Section):
            marked = next((each.name for each in field.metadata if isinstance(each, Option)), model.prefix + name)
            if marked:
                yield OptionPlace(marked, path, model, field)


def nested(model: type[BaseModel], flat: Mapping[str, object]) -> dict[str, object]:
    """The values of options, arranged as the model's sections take them."""
    arranged: dict[str, object] = {}
    for place in places(model):
        if place.option in flat:
            put(arranged, place.path, flat[place.option])
    return arranged


def put(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    name, *further = path
    if not further:
        tree[name] = value
        return
    below = tree.setdefault(name, {})
    assert isinstance(below, dict)
    put(below, tuple(further), value)


@cache
def _variables(options: frozenset[str], prefix: str) -> type[BaseSettings]:
    """A model that reads the variables of options as they are written; the sections convert and check them."""
    config = SettingsConfigDict(env_prefix=prefix, extra="ignore")
    base = type("Variables", (BaseSettings,), {"model_config": config})
    return create_model("Variables", __base__=base, **dict.fromkeys(options, (str | None, None)))  # type: ignore[call-overload,no-any-return]


def from_environment(options: Iterable[str], prefix: str, env_file: Path | str | None) -> dict[str, object]:
    """The options that the environment or the file sets; the environment wins."""
    read = _variables(frozenset(options), prefix)(_env_file=env_file)
    return read.model_dump(exclude_unset=True)


def faults(model: type[BaseModel], errors: Iterable[ErrorDetails]) -> list[str]:
    """A sentence for every option that is not valid, under the option's name."""
    named = {place.path: place.option for place in places(model)}
    sentences: dict[str, None] = {}
    for error in errors:
        path = next(path for path in named if error["loc"][: len(path)] == path)
        where = ".".join(map(str, (named[path], *error["loc"][len(path) :])))
        sentences[f"{where}: {error['msg']}"] = None
    return list(sentences)


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    items = _json_list(value) or value.split(",")
    return tuple(item.strip() for item in items if item.strip())


def _json_list(text: str) -> list[str] | None:
    """The texts of a JSON list; None for anything else, such as the address [::1]."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(item, str) for item in found) else None


def _usable(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Refuse empty keys, which come from variables that are not set and would admit everyone, and parts of a list that
    is not JSON, which nobody could send."""
    texts = [key.get_secret_value() for key in keys]
    if any(not text.rpartition(":")[2].strip() for text in texts):
        raise ValueError("A key may not be empty")
    if any(text.startswith(("[", "'", '"')) for text in texts):
        raise ValueError("A key may not begin with a bracket or a quote; write keys with commas between them")
    return keys


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
Keys = Annotated[Secrets, AfterValidator(_usable)]


def read_object(value: object) -> object:
    """A JSON object from a variable. Raises ValueError."""
    return json.loads(value) if isinstance(value, str) else value
