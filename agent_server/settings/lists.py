"""Lists of an operator: a tuple, or one text with commas between its items, as a variable has it, or a JSON list."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr


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
