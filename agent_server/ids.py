"""Identifiers: a prefix that says of what, and 96 random bits."""

from __future__ import annotations

import os

BYTES = 12
DRAWN = 256
_drawn: list[str] = []  # random numbers from the system, many at once: each call to it lets other threads in
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_drawn.clear)


def new_id(prefix: str) -> str:
    try:
        number = _drawn.pop()
    except IndexError:
        digits = os.urandom(BYTES * DRAWN).hex()
        number, *rest = [digits[at : at + 2 * BYTES] for at in range(0, len(digits), 2 * BYTES)]
        _drawn.extend(rest)
    return f"{prefix}_{number}"
