"""Sections of the settings, and how flat options are sorted into them.

An operator writes flat names (`AGENT_SERVER_ENGINE_CONNECT`, `--redis`); each part of the server gets a section, a
frozen model with its own names. A field of a section is one option; the option's name is the field's with the section's
prefix, unless `Option` names another. So a new setting is one line in its section.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from dotenv import dotenv_values
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

ENV_FILE = ".env"


class Option(NamedTuple):
    """Annotates a field whose option has another name than the default. Several sections may read the same option."""

    name: str


FIXED = Option("")
"""Annotates a field that is not an option; only code can set it."""


class Section(BaseModel):
    """Settings that belong together. Creating one in code reads no environment variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    title: ClassVar[str] = ""
    """The heading in docs/settings.md."""
    prefix: ClassVar[str] = ""
    """What precedes the fields' names in the options' names."""


class OptionPlace(NamedTuple):
    """An option's field. path: the names that lead from the settings to the field."""

    option: str
    path: tuple[str, ...]
    section: type[Section]
    field: FieldInfo


def places(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[OptionPlace]:
    """Yield every option of a model's sections and of nested sections."""
    for name, field in model.model_fields.items():
        path = (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from places(field.annotation, path)
        elif issubclass(model, Section):
            option = next((each.name for each in field.metadata if isinstance(each, Option)), model.prefix + name)
            if option:
                yield OptionPlace(option, path, model, field)


def nested(model: type[BaseModel], flat: Mapping[str, object]) -> dict[str, object]:
    """Arrange the values of flat options in the structure of the model's sections."""
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


def from_environment(options: Iterable[str], prefix: str, env_file: Path | str | None) -> dict[str, str]:
    """Return the options that the environment or the file sets, in upper or lower case, as raw text: the sections
    convert and validate it. The environment takes precedence."""
    in_file = dotenv_values(Path(env_file).expanduser()) if env_file is not None else {}
    variables = {name.lower(): value for name, value in (in_file | os.environ).items() if value is not None}
    named = {option: f"{prefix}{option}".lower() for option in options}
    return {option: variables[name] for option, name in named.items() if name in variables}


def faults(model: type[BaseModel], errors: Iterable[ErrorDetails]) -> list[str]:
    """Return one message for every invalid option, preceded by the option's name."""
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
    try:
        parsed = json.loads(value)
    except ValueError:  # also for the address [::1]
        parsed = None
    is_json_list = isinstance(parsed, list) and all(isinstance(item, str) for item in parsed)
    items: list[str] = parsed if is_json_list and parsed else value.split(",")
    return tuple(item.strip() for item in items if item.strip())


def _usable(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Reject empty keys, which come from unset variables and would admit everyone, and fragments of an invalid JSON
    list, which no client could send."""
    texts = [key.get_secret_value() for key in keys]
    if any(not text.rpartition(":")[2].strip() for text in texts):
        raise ValueError("A key may not be empty")
    if any(text.startswith(("[", "'", '"')) for text in texts):
        raise ValueError("A key may not begin with a bracket or a quote; separate keys with commas")
    return keys


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
Keys = Annotated[Secrets, AfterValidator(_usable)]


def read_object(value: object) -> object:
    """Parse a JSON object from a variable. Raises ValueError."""
    return json.loads(value) if isinstance(value, str) else value
