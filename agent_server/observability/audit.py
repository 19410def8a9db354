"""The audit log: who approved, edited, deleted or stopped what, one JSON object per line in an append-only file.

An entry is noted where an action is performed, whichever wire requested it, and after it has succeeded. It contains
names and ids, but no content of messages.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from agent_server.observability.telemetry import noted_ids

logger = logging.getLogger("agent_server.audit")
WHO = ("tenant", "key", "request", "trace")


class AuditLog:
    """A file of entries. A thread appends each with one write (O_APPEND), so that several processes may share the file
    and the event loop never waits for the disk. Raises OSError if the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._path = path
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="audit", daemon=True)
        self._writer.start()

    def add(self, line: bytes) -> None:
        self._lines.put(line)

    def close(self) -> None:
        """Write the pending entries and close the file. Safe to call twice."""
        if self._writer.is_alive():
            self._lines.put(None)
            self._writer.join()
            os.close(self._file)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                os.write(self._file, line)
            except OSError as error:  # the entry goes to the server's log instead
                logger.error("The audit log %s cannot be written: %s: %s", self._path, error, line.decode().rstrip())


_log: ContextVar[AuditLog | None] = ContextVar("audit_log", default=None)


def use_audit(log: AuditLog | None) -> None:
    """Use this log in the current task and in tasks that it starts."""
    _log.set(log)


def note(action: str, **what: object) -> None:
    """Note an action. what: its objects by name, such as thread, run and tool_call; empty values are left out. The
    actor is taken from the ids of the request."""
    if (log := _log.get()) is None:
        return
    ids = noted_ids()
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry: dict[str, object] = {"time": moment, "action": action, **{name: ids[name] for name in WHO if name in ids}}
    entry |= {name: value for name, value in what.items() if value not in ("", None)}
    log.add(json.dumps(entry, ensure_ascii=True).encode() + b"\n")
