"""A cache with a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache that drops the least recently used entries when their total cost exceeds a limit. Thread-safe.

    limit: of the total cost. cost: of one entry; by default each costs 1, so that `limit` is a number of entries. An
    entry that alone costs more than the limit is not cached.
    """

    def __init__(self, limit: int, cost: Callable[[K, V], int] = lambda key, value: 1) -> None:
        self._limit = limit
        self._cost_of = cost
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.cost = 0
        """The total cost of the entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the cached value, which is then the most recently used one, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Cache a value in place of the key's former one."""
        cost = self._cost_of(key, value)
        with self._lock:
            if (former := self._entries.pop(key, None)) is not None:
                self.cost -= former[1]
            if cost > self._limit:
                return
            self._entries[key] = value, cost
            self.cost += cost
            while self.cost > self._limit:
                _, (_, dropped_cost) = self._entries.popitem(last=False)
                self.cost -= dropped_cost
