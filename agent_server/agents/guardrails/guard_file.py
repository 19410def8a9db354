"""Guards that are written down in a TOML file: phrases, patterns and guard models."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_server.agents.guardrails.guard import WHERE, Guard, Where
from agent_server.agents.guardrails.hook_guard import EVERY
from agent_server.agents.guardrails.pattern_guard import PatternGuard


class GuardFileError(ValueError):
    """What is wrong with a file of guards, as a sentence for the operator."""


class _Entry(BaseModel):
    """What every guard has. action: `stop`, or `note` to log what is found and let it through."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100)]
    on: Annotated[tuple[Where, ...], Field(min_length=1)] = WHERE
    message: Annotated[str, Field(max_length=500)] = ""
    action: Literal["stop", "note"] = "stop"


class PatternEntry(_Entry):
    patterns: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    ignore_case: bool = True

    def guard(self) -> Guard:
        return PatternGuard(
            self.name,
            patterns=self.patterns,
            phrases=self.phrases,
            on=self.on,
            ignore_case=self.ignore_case,
            message=self.message,
            stops=self.action == "stop",
        )


class ModelGuardEntry(_Entry):
    """A guard model. model: its name among the served ones, "" for the first. instructions: told to it as the system's
    words; empty for a model whose template says it all. forbids: what its answer has when a text may not go on. every:
    as for hooks."""

    on: Annotated[tuple[Where, ...], Field(min_length=1)] = ("prompt", "text")
    model: str = ""
    instructions: str = ""
    forbids: Annotated[str, Field(min_length=1)] = "unsafe"
    every: Annotated[int, Field(ge=0)] = EVERY
    max_tokens: Annotated[int, Field(gt=0, le=256)] = 16


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    guard: tuple[PatternEntry, ...] = ()
    model: tuple[ModelGuardEntry, ...] = ()


def load_guard_file(path: Path) -> tuple[list[Guard], list[ModelGuardEntry]]:
    """The guards of a file, and the guard models that it names. Raises GuardFileError."""
    try:
        read = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
        guards = [each.guard() for each in read.guard]
    except OSError as error:
        raise GuardFileError(f"The guards in {path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GuardFileError(f"The guards in {path} cannot be used: {where}: {first['msg']}.") from None
    except ValueError as error:  # TOML's and the patterns' errors
        raise GuardFileError(f"The guards in {path} cannot be used: {error}.") from None
    if not guards and not read.model:
        raise GuardFileError(f"{path} has no guards; a table [[guard]] or [[model]] is one.")
    return guards, list(read.model)
