"""`agent-server replicas`: show the state of a gateway's replicas, and drain one of them."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

SECONDS = 10.0


def replicas(
    drain: Annotated[str, typer.Option(help="Send this replica no further generations.")] = "",
    undrain: Annotated[str, typer.Option(help="Send this replica generations again.")] = "",
    server: Annotated[str, typer.Option(help="The gateway's URL.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(envvar="AGENT_SERVER_OPERATOR_KEY", help="An operator's key.")] = "",
) -> None:
    """Show a gateway's replicas, after draining one with --drain or resuming it with --undrain."""
    import httpx2

    change = {"name": drain or undrain, "draining": bool(drain)} if drain or undrain else None
    url = f"{server.rstrip('/')}/operator/replicas"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx2.request("POST" if change else "GET", url, json=change, headers=headers, timeout=SECONDS)
        body = answer.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        _fail(f"{url} does not answer like a gateway: {error}")
    if answer.status_code != 200:
        _fail(str(body.get("message") or body.get("error") or body) if isinstance(body, dict) else str(body))
    columns = ("name", "condition", "circuit", "inFlight", "generations", "failures", "retries", "resumes")
    rows = [columns, *(tuple(str(row[column]) for column in columns) for row in body["replicas"])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{body['state']}, {body['waiting']} waiting")


def _fail(message: str) -> NoReturn:
    print(f"agent-server: {message}", file=sys.stderr)
    raise typer.Exit(1)
