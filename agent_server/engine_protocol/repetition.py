"""Recognising a model that repeats itself.

A small model that has begun to repeat itself may go on until the answer's limit.
"""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 256
"""Length of the window that is examined, in tokens."""
EVERY = 32
"""Tokens between two checks."""
MOST_DISTINCT = 0.33
"""A window is repetitive if at most this share of its trigrams are distinct. In prose and code nearly all are."""


def is_repetitive(tokens: Sequence[int]) -> bool:
    """Return whether the last WINDOW of these tokens repeat themselves; False if there are fewer."""
    if len(tokens) < WINDOW:
        return False
    last = tokens[-WINDOW:]
    return len(set(zip(last, last[1:], last[2:], strict=False))) <= MOST_DISTINCT * WINDOW
