"""Bounds on JSON values from other producers: how deep they nest, and how large they are once they are encoded."""

from __future__ import annotations

from math import inf

DEPTH = 128
"""Levels of arrays and objects in a value from another producer. Encoders recurse, and Python allows about 1000 levels
in all."""
VALUE_BYTES = 64
"""What one value counts besides its text, about as much as it takes in memory."""


class TooLarge(ValueError):
    """A value nests too deeply, or is too large."""


def measure(value: object, *, above: int = 0, most: float = inf) -> int:
    """Return the approximate size of a JSON value in bytes. A part that occurs several times counts each time.

    above: levels above it. Raises TooLarge beyond `most` bytes or DEPTH levels, without visiting the rest.
    """
    size, depth, level = VALUE_BYTES, above, [value]
    while level:
        below: list[object] = []
        for node in level:
            if isinstance(node, str):
                size += len(node)
            elif isinstance(node, dict):
                size += VALUE_BYTES * len(node) + sum(len(key) for key in node if isinstance(key, str))
                below.extend(node.values())
            elif isinstance(node, list | tuple):
                size += VALUE_BYTES * len(node)
                below.extend(node)
            if size > most:
                raise TooLarge(f"The value has more than {most} bytes.")
        level = below
        depth += bool(level)
        if depth > DEPTH:
            raise TooLarge(f"The value nests deeper than {DEPTH} levels.")
    return size
