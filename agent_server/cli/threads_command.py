"""`agent-server threads`: backups of the database of conversations, and removal by age or tenant."""

from __future__ import annotations

import asyncio
import getpass
import re
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from sqlalchemy.exc import SQLAlchemyError

from agent_server.cli.serve import read_settings
from agent_server.observability.audit import AuditLog, note, use_audit

if TYPE_CHECKING:
    from agent_server.runs.store import Extent, Removed

T = TypeVar("T")

threads = typer.Typer(no_args_is_help=True, help="Back up, restore, prune and erase the stored threads.")
StoreOption = Annotated[str | None, typer.Option(help="Database URL; the server's own if none.")]
AGE = re.compile(r"(\d{1,6})([dw])")
DAY_MILLISECONDS = 24 * 3600 * 1000
PROGRESS_SECONDS = 2.0


@threads.command()
def backup(place: Annotated[Path, typer.Argument(help="The file to make.")], store: StoreOption = None) -> None:
    """Write all threads into a new file (gzip). The server may go on meanwhile."""
    from agent_server.runs.store import archive

    rows = _done(store, "threads.backed_up", lambda url: archive.backup(url, place), lambda rows: {"rows": rows})
    print(f"{rows} rows are in {place}.")


@threads.command()
def restore(place: Annotated[Path, typer.Argument(help="The backup.")], store: StoreOption = None) -> None:
    """Put a backup into an empty database, of the same kind or the other. Stop the server before."""
    from agent_server.runs.store import archive

    rows = _done(store, "threads.restored", lambda url: archive.restore(url, place), lambda rows: {"rows": rows})
    print(f"{rows} rows were restored.")


@threads.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The revision that the older version names when it refuses.")],
    store: StoreOption = None,
) -> None:
    """Bring the database back to the schema of an older version. Stop the server and make a backup before."""
    from agent_server.runs.store import archive

    _done(
        store, "threads.downgraded", lambda url: archive.bring_back(url, revision),
        lambda newest: {"revision": revision, "was": newest},
    )  # fmt: skip
    print(f"The database is at revision {revision}. This version would bring it to its own again.")


@threads.command()
def compact(store: StoreOption = None) -> None:
    """Write an SQLite file anew without its free pages; files of earlier versions give none back before. Stop the
    server before; needs as much free disk as the file has."""
    from agent_server.runs.store import archive

    before, after = _done(
        store, "threads.compacted", archive.compact, lambda sizes: {"before": sizes[0], "after": sizes[1]}
    )
    print(f"The file had {before} bytes and has {after}.")


@threads.command()
def prune(
    older_than: Annotated[str, typer.Option(help="Age since the last use: 90d or 12w.")],
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    store: StoreOption = None,
) -> None:
    """Remove threads that were not used for so long, for good."""
    from agent_server.runs.store import Extent

    if (found := AGE.fullmatch(older_than)) is None:
        raise typer.BadParameter(
            f"Unknown age {older_than!r}. Use days or weeks, such as 90d or 12w.", param_hint="--older-than"
        )
    days = int(found[1]) * (7 if found[2] == "w" else 1)
    before = time.time_ns() // 1_000_000 - days * DAY_MILLISECONDS
    _remove(store, Extent(tenant=tenant, before=before), "age")


@threads.command()
def erase(
    tenant: Annotated[str, typer.Option(help="Whose threads; '' is the tenant of a server without keys.")],
    key: Annotated[str | None, typer.Option(help="Of this key or user of the tenant alone, by the name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove all that is stored of a tenant, or of one of its keys, for good."""
    from agent_server.runs.store import Extent

    whose = f"the tenant {tenant!r}" if key is None else f"the key {key!r} of the tenant {tenant!r}"
    if not yes:
        typer.confirm(f"Remove all threads of {whose} for good?", abort=True)
    _remove(store, Extent(tenant=tenant, key=key), "erasure")


def _remove(store: str | None, extent: Extent, reason: str) -> None:
    from agent_server.runs.store import archive

    last = time.monotonic()

    async def report(removed: Removed) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            print(f"{removed.threads.total()} threads so far", file=sys.stderr)

    removed = _done(
        store, "threads.removed", lambda url: archive.remove(url, extent, report),
        lambda removed: {
            "tenant": extent.tenant, "of_key": extent.key, "threads": removed.threads.total(),
            "responses": removed.responses.total(), "reason": reason,
        },
    )  # fmt: skip
    print(f"{removed.threads.total()} threads were removed.")


def _done(
    store: str | None,
    action: str,
    work: Callable[[str], Coroutine[None, None, T]],
    told: Callable[[T], Mapping[str, object]],
) -> T:
    """What was done to the database, which the server's audit log is told."""
    from agent_server.runs.store.archive import ArchiveError

    settings = read_settings({"store_url": store})
    path = settings.watching.audit_log
    try:
        audit = None if path is None else AuditLog(path)
        try:
            done = asyncio.run(work(settings.store.database_url))
            use_audit(audit)
            note(action, **told(done), by=f"{getpass.getuser()} on the command line")
        finally:
            if audit is not None:
                audit.close()
    except ArchiveError as error:
        said = str(error)
    except (SQLAlchemyError, OSError, ImportError) as error:
        said = f"The store cannot be used: {(str(error).splitlines() or [type(error).__name__])[0]}"
    else:
        return done
    print(f"agent-server: {said}", file=sys.stderr)
    raise typer.Exit(1)
