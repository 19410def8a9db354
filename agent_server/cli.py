"""The command `agent-server`. Each subcommand lives in `agent_server/commands/`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_server.commands.chat import chat
from agent_server.commands.evaluate import evaluate
from agent_server.commands.inspect import inspect
from agent_server.commands.keys_command import keys
from agent_server.commands.new import new
from agent_server.commands.parse import parse
from agent_server.commands.replicas import replicas
from agent_server.commands.serve import serve
from agent_server.commands.threads_command import threads
from agent_server.commands.worker import worker
from agent_server.version import version

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (serve, new, worker, replicas, chat, evaluate, inspect, parse):
    app.command()(command)
app.add_typer(keys, name="keys")
app.add_typer(threads, name="threads")


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
