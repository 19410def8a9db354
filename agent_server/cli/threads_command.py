"""`agent-server threads`: back up and restore the database of conversations, and remove threads by age or tenant."""

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
    from agent_server.runs.store import RemovalScope, RemovedCounts

T = TypeVar("T")

threads = typer.Typer(no_args_is_help=True, help="Back up, restore, prune and erase the stored threads.")
StoreOption = Annotated[str | None, typer.Option(help="Database URL; default: the server's.")]
AGE = re.compile(r"(\d{1,6})([dw])")
DAY_MILLISECONDS = 24 * 3600 * 1000
PROGRESS_SECONDS = 2.0


@threads.command()
def backup(place: Annotated[Path, typer.Argument(help="The file to create.")], store: StoreOption = None) -> None:
    """Write all threads to a new file (gzip). The server may keep running."""
    from agent_server.runs.store import archive

    rows = _run_on_store(
        store, "threads.backed_up", lambda url: archive.backup(url, place), lambda rows: {"rows": rows}
    )
    print(f"{rows} rows are in {place}.")


@threads.command()
def restore(place: Annotated[Path, typer.Argument(help="The backup.")], store: StoreOption = None) -> None:
    """Restore a backup into an empty database, SQLite or PostgreSQL. Stop the server first."""
    from agent_server.runs.store import archive

    rows = _run_on_store(
        store, "threads.restored", lambda url: archive.restore(url, place), lambda rows: {"rows": rows}
    )
    print(f"{rows} rows were restored.")


@threads.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The revision that the older version names in its error.")],
    store: StoreOption = None,
) -> None:
    """Downgrade the database to the schema of an older version. Stop the server and make a backup first."""
    from agent_server.runs.store import archive

    _run_on_store(
        store, "threads.downgraded", lambda url: archive.bring_back(url, revision),
        lambda newest: {"revision": revision, "was": newest},
    )  # fmt: skip
    print(f"The database is at revision {revision}. Starting this version would upgrade it again.")


@threads.command()
def compact(store: StoreOption = None) -> None:
    """Rewrite an SQLite file without its free pages, which files of earlier versions never release otherwise. Stop the
    server first; needs as much free disk space as the file takes."""
    from agent_server.runs.store import archive

    before, after = _run_on_store(
        store, "threads.compacted", archive.compact, lambda sizes: {"before": sizes[0], "after": sizes[1]}
    )
    print(f"The file was compacted from {before} to {after} bytes.")


@threads.command()
def prune(
    older_than: Annotated[str, typer.Option(help="Age since the last use: 90d or 12w.")],
    tenant: Annotated[str | None, typer.Option(help="Only threads of this tenant.")] = None,
    store: StoreOption = None,
) -> None:
    """Permanently remove threads that have not been used for this long."""
    from agent_server.runs.store import RemovalScope

    if (age := AGE.fullmatch(older_than)) is None:
        raise typer.BadParameter(
            f"Unknown age {older_than!r}. Use days or weeks, such as 90d or 12w.", param_hint="--older-than"
        )
    days = int(age[1]) * (7 if age[2] == "w" else 1)
    before = time.time_ns() // 1_000_000 - days * DAY_MILLISECONDS
    _remove(store, RemovalScope(tenant=tenant, before=before), "age")


@threads.command()
def erase(
    tenant: Annotated[str, typer.Option(help="Whose threads; '' is the tenant of a server without keys.")],
    key: Annotated[str | None, typer.Option(help="Only threads of this key or user of the tenant, by name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Permanently remove everything stored for a tenant, or for one of its keys."""
    from agent_server.runs.store import RemovalScope

    whose = f"the tenant {tenant!r}" if key is None else f"the key {key!r} of the tenant {tenant!r}"
    if not yes:
        typer.confirm(f"Permanently remove all threads of {whose}?", abort=True)
    _remove(store, RemovalScope(tenant=tenant, key=key), "erasure")


def _remove(store: str | None, scope: RemovalScope, reason: str) -> None:
    from agent_server.runs.store import archive

    last = time.monotonic()

    async def report(removed: RemovedCounts) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_SECONDS:
            last = time.monotonic()
            print(f"{removed.threads.total()} threads so far", file=sys.stderr)

    removed = _run_on_store(
        store, "threads.removed", lambda url: archive.remove(url, scope, report),
        lambda removed: {
            "tenant": scope.tenant, "of_key": scope.key, "threads": removed.threads.total(),
            "responses": removed.responses.total(), "reason": reason,
        },
    )  # fmt: skip
    print(f"{removed.threads.total()} threads were removed.")


def _run_on_store(
    store: str | None,
    action: str,
    work: Callable[[str], Coroutine[None, None, T]],
    details: Callable[[T], Mapping[str, object]],
) -> T:
    """Run a command on the database and record it in the server's audit log. Exits with a message if it fails.

    details: the result → fields for the audit log.
    """
    from agent_server.runs.store.archive import ArchiveError

    settings = read_settings({"store_url": store})
    path = settings.watching.audit_log
    try:
        audit = None if path is None else AuditLog(path)
        try:
            result = asyncio.run(work(settings.store.database_url))
            use_audit(audit)
            note(action, **details(result), by=f"{getpass.getuser()} on the command line")
        finally:
            if audit is not None:
                audit.close()
    except ArchiveError as error:
        message = str(error)
    except (SQLAlchemyError, OSError, ImportError) as error:
        message = f"The store cannot be used: {(str(error).splitlines() or [type(error).__name__])[0]}"
    else:
        return result
    print(f"agent-server: {message}", file=sys.stderr)
    raise typer.Exit(1)
