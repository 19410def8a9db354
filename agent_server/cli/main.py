"""The command `agent-server`. Each subcommand lives in `agent_server/cli/`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_server.cli.chat import chat
from agent_server.cli.connect import connect
from agent_server.cli.evaluate import evaluate
from agent_server.cli.inspect import inspect
from agent_server.cli.keys_command import keys
from agent_server.cli.new import new
from agent_server.cli.parse import parse
from agent_server.cli.pull import models, pull
from agent_server.cli.replicas import replicas
from agent_server.cli.serve import serve
from agent_server.cli.threads_command import threads
from agent_server.cli.worker import worker
from agent_server.version import version

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (serve, pull, models, new, connect, worker, replicas, chat, evaluate, inspect, parse):
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
