"""The heap of this process."""

from __future__ import annotations

import ctypes
import sys


def give_memory_back() -> None:
    """Return freed memory to the system. glibc keeps freed blocks below its threshold (mallopt(3), M_MMAP_THRESHOLD,
    up to 32 MiB): most of a gigabyte after a long encoding, or when weights were rounded."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # a C library other than glibc
            return
