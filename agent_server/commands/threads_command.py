"""`agent-server threads`: backups of the database of conversations, and removal by age or tenant."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import SQLAlchemyError

from agent_server.commands.serve import read_settings

threads = typer.Typer(no_args_is_help=True, help="Back up, restore, prune and erase the stored threads.")
StoreOption = Annotated[str | None, typer.Option(help="Database URL; the server's own if none.")]
AGE = re.compile(r"(\d{1,6})([dw])")
DAY_MILLISECONDS = 24 * 3600 * 1000


@threads.command()
def backup(place: Annotated[Path, typer.Argument(help="The file to make.")], store: StoreOption = None) -> None:
    """Write all threads into a new file (gzip). The server may go on meanwhile."""
    from agent_server.store import archive

    print(f"{_done(archive.backup(_url(store), place))} rows are in {place}.")


@threads.command()
def restore(place: Annotated[Path, typer.Argument(help="The backup.")], store: StoreOption = None) -> None:
    """Put a backup into an empty database, of the same kind or the other. Stop the server before."""
    from agent_server.store import archive

    print(f"{_done(archive.restore(_url(store), place))} rows were restored.")


@threads.command()
def prune(
    older_than: Annotated[str, typer.Option(help="Age since the last use: 90d or 12w.")],
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    store: StoreOption = None,
) -> None:
    """Remove threads that were not used for so long, for good."""
    from agent_server.store import archive

    if (found := AGE.fullmatch(older_than)) is None:
        raise typer.BadParameter(f"{older_than} is no age; say 90d or 12w", param_hint="--older-than")
    days = int(found[1]) * (7 if found[2] == "w" else 1)
    before = time.time_ns() // 1_000_000 - days * DAY_MILLISECONDS
    print(f"{_done(archive.remove(_url(store), tenant=tenant, before=before))} threads were removed.")


@threads.command()
def erase(
    tenant: Annotated[str, typer.Option(help="Whose threads; '' is the tenant of a server without keys.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove all that is stored of a tenant, for good."""
    from agent_server.store import archive

    if not yes:
        typer.confirm(f"Remove all threads of the tenant {tenant!r} for good?", abort=True)
    print(f"{_done(archive.remove(_url(store), tenant=tenant))} threads were removed.")


def _url(store: str | None) -> str:
    return read_settings({"store_url": store}).store.database_url


def _done(work: Coroutine[Any, Any, int]) -> int:
    from agent_server.store.archive import ArchiveError

    try:
        return asyncio.run(work)
    except ArchiveError as error:
        said = str(error)
    except (SQLAlchemyError, OSError, ImportError) as error:
        said = f"The store cannot be used: {(str(error).splitlines() or [type(error).__name__])[0]}"
    print(f"agent-server: {said}", file=sys.stderr)
    raise typer.Exit(1)
