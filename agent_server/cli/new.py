"""`agent-server new`: create a working project with an agent and a CopilotKit page that talks to it."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

PROJECT = "PROJECT"
"""The placeholder for the project's name in the files."""
EXTRAS = "EXTRAS"
"""The placeholder for the extras that the agent needs."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Names that are valid both as npm package names and as an agent's name in a URL path."""


class Framework(StrEnum):
    PLAIN = "plain"
    LANGGRAPH = "langgraph"
    PYDANTIC_AI = "pydantic-ai"

    @property
    def extras(self) -> str:
        return "local" if self is Framework.PLAIN else f"local,{self.value}"


def new(
    framework: Annotated[Framework, typer.Argument(help="What the agent is written with.")],
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the project's and the agent's.")],
) -> None:
    """Write a working project: an agent with two tools, one of which asks first, and its React page."""
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        message = f"{name} cannot name a project: use lower-case letters, digits, dots, dashes and underscores"
        raise typer.BadParameter(message, param_hint="FOLDER")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"{folder} already exists. Use a new or an empty folder.", param_hint="FOLDER")
    for place, text in project_files(name, framework).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")
    typer.echo(f"{folder}/README.md says how to start it.")


def project_files(name: str, framework: Framework) -> dict[str, str]:
    """Return the project's files: path → text."""
    root = resources.files("agent_server.cli") / "new_project"
    sources = {
        "README.md": root / "README.md",
        ".gitignore": root / "gitignore",
        "agent.py": root / framework.value.replace("-", "_") / "agent.py.txt",
        **{f"web/{place}": file for place, file in _tree(root / "web").items()},
    }
    return {
        place: file.read_text("utf-8").replace(PROJECT, name).replace(EXTRAS, f"'agent-server[{framework.extras}]'")
        for place, file in sources.items()
    }


def _tree(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    files: dict[str, Traversable] = {}
    for each in folder.iterdir():
        files |= _tree(each, f"{prefix}{each.name}/") if each.is_dir() else {prefix + each.name: each}
    return files
