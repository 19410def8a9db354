"""Ending a JSON string in which a model repeats itself.

A grammar keeps a model in a string until it writes a quote. A small model that repeats itself may not write one before
the answer's limit, and the client gets a truncated object. The mask is therefore restricted to tokens that close the
string, and the rest of the object follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor


class StringClosers:
    """The tokens of a vocabulary that close a JSON string: those that begin with a quote. texts: the bytes of each
    token."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._closing = _bits([text.startswith(b'"') for text in texts])
        self._breaking = _bits([text.startswith(b"\n") for text in texts])

    def close(self, row: Tensor) -> bool:
        """Restrict a mask to the tokens that close the JSON string. Return False, and change nothing, for a mask
        outside of a string: inside one, most tokens are allowed, quotes among them, but no line break."""
        words = row.numpy().view("uint32")
        closing = words & self._closing
        free = 2 * int(np.bitwise_count(words).sum()) > 32 * len(words)
        if not free or not closing.any() or (words & self._breaking).any():
            return False
        words[:] = closing
        return True


def _bits(flags: Sequence[bool]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    padded = np.zeros(-(-len(flags) // 32) * 32, dtype=np.uint8)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.uint32)
