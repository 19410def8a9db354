"""A PostgreSQL server of the tests' own: started in a temporary folder, on a socket, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PLACES = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/pgsql/bin")]


def binaries() -> Path | None:
    """Where initdb and postgres are, or None."""
    found = [place for place in PLACES if (place / "initdb").exists()]
    if found:
        return found[0]
    there = shutil.which("initdb")
    return Path(there).parent if there else None


def _user() -> str | None:
    """PostgreSQL refuses to run as root; then its own user or nobody is taken."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return None


class Postgres:
    """A PostgreSQL server with an empty database in a folder of its own, that can be stopped and started."""

    def __init__(self, home: Path) -> None:
        found = binaries()
        assert found is not None
        self._bin = found
        self._home = home
        user = _user()
        if user:
            shutil.chown(home, user)
        self._options: dict[str, Any] = {"user": user} if user else {}
        self._options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": home}
        self._process: subprocess.Popen[bytes] | None = None
        words = ["-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run([self._bin / "initdb", "-D", home / "data", *words], check=True, **self._options)

    @property
    def url(self) -> str:
        return f"postgresql://tester@/postgres?host={self._home}"

    def start(self) -> None:
        command = [self._bin / "postgres", "-D", self._home / "data", "-k", self._home]
        self._process = subprocess.Popen([*command, "-c", "listen_addresses=", "-c", "fsync=on"], **self._options)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        asked = [self._bin / "pg_isready", "-h", self._home, "-q"]
        return (self._home / ".s.PGSQL.5432").exists() and not subprocess.run(asked).returncode

    def stop(self) -> None:
        """At once, as when the machine under it goes away; what was committed is there when it is started again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None


@contextmanager
def running() -> Iterator[Postgres]:
    home = Path(tempfile.mkdtemp(prefix="agent-server-pg-"))
    try:
        made = Postgres(home)
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a running server with an empty database."""
    with running() as made:
        yield made.url
