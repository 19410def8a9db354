"""A watch on the event loop: a call that blocks it, from the server's own code, fails the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blockbuster import blockbuster_ctx


@contextmanager
def nothing_blocks() -> Iterator[None]:
    with blockbuster_ctx("agent_server") as watch:
        watch.functions["os.path.abspath"].deactivate()  # asks for the working directory and reads nothing
        for name, function in watch.functions.items():
            if name.startswith("sqlite3."):  # the store has a loop, and a thread, to itself
                function.can_block_in("store/connections.py", {"begin", "connect", "dispose"})
        watch.functions["os.stat"].can_block_in("store/connections.py", "_is_there")  # there, too
        # there, too, whenever SQLAlchemy's pool opens one more connection: asyncpg looks for ~/.pgpass
        watch.functions["os.stat"].can_block_in("asyncpg/connect_utils.py", "_read_password_file")
        yield
