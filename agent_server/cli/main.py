"""The command `agent-server`. Each subcommand is a module of `agent_server/cli/`, imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from agent_server.version import version

if TYPE_CHECKING:
    from typer._click import Command, Context  # typer has a copy of click and no public name for these two

COMMANDS = {
    "serve": "serve",
    "pull": "pull",
    "models": "pull",
    "new": "new",
    "connect": "connect",
    "worker": "worker",
    "replicas": "replicas",
    "chat": "chat",
    "evaluate": "evaluate",
    "doctor": "doctor",
    "inspect": "inspect",
    "parse": "parse",
    "keys": "keys_command",
    "threads": "threads_command",
}
"""The module of each subcommand; it has a function or a typer.Typer with the subcommand's name."""


class LazyGroup(TyperGroup):
    """Imports the module of a subcommand only when it is called: most commands do not need a server's libraries."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        subcommand = getattr(import_module(f"agent_server.cli.{COMMANDS[cmd_name]}"), cmd_name)
        if isinstance(subcommand, typer.Typer):
            command = get_group(subcommand)
            command.name = cmd_name
            return command
        single = typer.Typer(add_completion=False)
        single.command(cmd_name)(subcommand)
        return get_command(single)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(value: bool) -> None:
    if value:
        typer.echo(version())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The inference server that speaks AG-UI natively."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
