"""Lists of an operator: a tuple, or one text with commas between its items, as a variable has it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr


def _listed(value: object) -> object:
    return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value


def _not_empty(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    """Refuse empty keys, which come from variables that are not set and would admit everyone."""
    if any(not key.get_secret_value().rpartition(":")[2].strip() for key in keys):
        raise ValueError("A key may not be empty")
    return keys


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
Keys = Annotated[Secrets, AfterValidator(_not_empty)]
