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


@contextmanager
def server() -> Iterator[str]:
    """The URL of a running server with an empty database."""
    bin = binaries()
    assert bin is not None
    user = _user()
    home = Path(tempfile.mkdtemp(prefix="agent-server-pg-"))
    if user:
        shutil.chown(home, user)
    options = {"user": user} if user else {}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": home}
    data = home / "data"
    subprocess.run(
        [bin / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
        check=True,
        **options,
        **quiet,
    )
    command = [bin / "postgres", "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "fsync=on"]
    process = subprocess.Popen(command, **options, **quiet)
    try:
        deadline = time.monotonic() + 30
        while (
            not (home / ".s.PGSQL.5432").exists() or subprocess.run([bin / "pg_isready", "-h", home, "-q"]).returncode
        ):
            assert process.poll() is None and time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)
        yield f"postgresql://tester@/postgres?host={home}"
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: its files are thrown away
        process.wait(20)
        shutil.rmtree(home, ignore_errors=True)
