"""`agent-server keys`: create, list and remove the keys of a keys file, which a running server reloads at once."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agent_server.http.auth.keys_file import (
    KeyEntry,
    KeysFileError,
    add_key,
    digest,
    new_secret,
    parse_keys,
    remove_key,
)
from agent_server.http.auth.principal import SCOPES

keys = typer.Typer(no_args_is_help=True, help="Make, list and remove the keys of a keys file.")
SPAN = re.compile(r"(\d{1,6})([mhdw])")
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
FileOption = Annotated[Path, typer.Option("--file", envvar="AGENT_SERVER_KEYS_FILE", help="The keys file.")]
DEFAULT_FILE = Path("keys.toml")


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="What the key is called in lists and logs.")],
    file: FileOption = DEFAULT_FILE,
    tenant: Annotated[str, typer.Option(help="Whose threads and runs it opens.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="use, operate or metrics (repeat); use if none.")] = None,
    expires: Annotated[str, typer.Option(help="When it ends: 90d, 12h, 30m or 4w from now, or 2027-01-31.")] = "",
    requests_per_minute: Annotated[int, typer.Option(min=0, help="0 sets no limit.")] = 0,
    tokens_per_minute: Annotated[int, typer.Option(min=0, help="Of prompts and answers; 0 sets no limit.")] = 0,
    runs: Annotated[int, typer.Option(min=0, help="Runs at once; 0 sets no limit.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=0, help="Tokens of one answer; 0 sets no limit.")] = 0,
    context: Annotated[int, typer.Option(min=0, help="Of a prompt and its answer together; 0 sets no limit.")] = 0,
) -> None:
    """Create a key. Its secret is printed once and stored nowhere; the file contains its hash."""
    if unknown := set(scope or ()) - SCOPES:
        raise typer.BadParameter(
            f"Unknown scope {min(unknown)!r}. Use {', '.join(sorted(SCOPES))}.", param_hint="--scope"
        )
    scopes = tuple(each for each in sorted(SCOPES) if each in (scope or ["use"]))
    secret = new_secret()
    entry = KeyEntry(
        name=name, hash=digest(secret), tenant=tenant, scopes=scopes, expires=_moment(expires),
        requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute, runs=runs, max_tokens=max_tokens,
        context=context,
    )  # fmt: skip
    try:
        add_key(file, entry)
    except (KeysFileError, OSError) as error:
        _fail(file, error)
    print(f"The key {name} is in {file}. Its secret is shown this once:", file=sys.stderr)
    print(secret)


@keys.command("list")
def listed(file: FileOption = DEFAULT_FILE) -> None:
    """Show the keys of the file, without their secrets, which are not stored."""
    try:
        entries = parse_keys(file.read_text("utf-8"))
    except (KeysFileError, OSError, UnicodeDecodeError) as error:
        _fail(file, error)
    rows = [("name", "tenant", "scopes", "expires")]
    for entry in entries:
        expires = "never" if entry.expires is None else entry.expires.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
        is_expired = entry.expires is not None and entry.expires <= datetime.now(UTC)
        rows.append((entry.name, entry.tenant, " ".join(entry.scopes), expires + (" (over)" if is_expired else "")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
def revoke(name: Annotated[str, typer.Argument(help="The key's name.")], file: FileOption = DEFAULT_FILE) -> None:
    """Remove a key from the file. The file is rewritten without its comments."""
    try:
        remove_key(file, name)
    except (KeysFileError, OSError) as error:
        _fail(file, error)


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    if span := SPAN.fullmatch(text):
        return datetime.now(UTC) + timedelta(**{UNITS[span[2]]: int(span[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"Unknown time {text!r}. Use 90d or 2027-01-31.", param_hint="--expires") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _fail(file: Path, error: Exception) -> NoReturn:
    print(f"agent-server: {file} cannot be used: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
    raise typer.Exit(1)
