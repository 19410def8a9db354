"""`agent-server pull` fetches a model from the hub; `agent-server models` lists local and suitable ones."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from agent_server.cli.serve import fail
from agent_server.model_files.catalogue import machine, offers
from agent_server.model_files.pulling import PullError, discard, fetch, local_models, look_up
from agent_server.settings import Settings


def pull(
    name: Annotated[str, typer.Argument(help="OWNER/NAME on the hub, or OWNER/NAME:FILE.gguf.")],
) -> None:
    """Fetch a model from the hub. An interrupted download is resumed."""
    try:
        model = look_up(name)
        columns = TextColumn(model.name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(model.name, total=model.bytes)
            fetch(model, Settings().downloads.disk, lambda done: bar.update(task, completed=done))
    except PullError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(f"Interrupted. `agent-server pull {name}` resumes the download.")
    typer.echo(f"{name} is here{f' ({model.licence})' if model.licence else ''}. Serve it: agent-server serve {name}")


def models(
    remove: Annotated[str | None, typer.Option(help="Remove a model that `pull` or the page fetched.")] = None,
) -> None:
    """List the local models, and those that this machine can run."""
    if remove is not None:
        try:
            discard(remove)
        except PullError as error:
            fail(str(error))
        typer.echo(f"{remove} was removed.")
        return
    local = list(local_models())
    typer.echo("Here:" if local else "No model is here yet.")
    for each in local:
        typer.echo(f"  {each.name:<48} {size(each.bytes):>9}")
    host = machine(Settings().compute.device)
    typer.echo(f"For this machine ({host.device}, {size(host.memory)} of memory):")
    for offer in offers(host):
        speed = "" if offer.speed is None else f"about {offer.speed:.0f} tokens/s"
        note = speed if offer.fits else "needs more memory"
        typer.echo(f"  {offer.name:<48} {size(offer.bytes):>9}  {offer.licence:<10}  {note}")
    typer.echo("Fetch one: agent-server pull NAME")


def size(bytes: int) -> str:
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.0f} MB"
