"""Grammars on the output: compiled beside the engine's thread, then one mask for each constrained row and step.

What compiles is a backend behind two small protocols; the core knows nothing of grammars but these.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from torch import Tensor

from agent_server.engine.protocol import Constraint

MAX_BYTES = 512 * 1024
"""Larger constraints are refused."""
MAX_CACHED = 64
TIME_LIMIT = 20.0
"""Seconds that compiling may take."""


class ConstraintError(Exception):
    """The constraint cannot be honoured; the message is one sentence for the client."""


class Matcher(Protocol):
    """Where one generation stands in its grammar."""

    def accept(self, token: int) -> bool:
        """Advance by a token; False if the grammar does not allow it, and nothing changes."""

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""


class Grammar(Protocol):
    """A compiled constraint, shared by the generations that ask for the same."""

    def matcher(self) -> Matcher: ...


class Backend(Protocol):
    """Compiles constraints and fills masks."""

    def compile(self, constraint: Constraint) -> Grammar:
        """Blocking; raises ConstraintError."""

    def fill(self, matchers: Sequence[Matcher], bits: Tensor) -> None:
        """The masks of all matchers in one go: `bits` `[matchers, ceil(vocabulary / 32)]` int32 on the CPU, a set bit
        allows the token, least significant bit first."""


Done = Callable[[Grammar | None, str | None], None]


class Compiler:
    """Compiles off the engine's thread, with a cache, a size limit and a time limit.

    A compilation that exceeds its time is reported as failed; its thread ends when the backend lets it.
    """

    def __init__(self, backend: Backend, *, threads: int = 2, time_limit: float = TIME_LIMIT) -> None:
        self.backend = backend
        self._time_limit = time_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._cache: OrderedDict[bytes, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint, done: Done) -> None:
        """Call `done(grammar, None)` or `done(None, why not)` exactly once, now or from another thread."""
        key = msgspec.json.encode(constraint, order="deterministic")
        if len(key) > MAX_BYTES:
            done(None, f"The grammar has {len(key)} bytes; at most {MAX_BYTES} are allowed.")
            return
        with self._lock:
            grammar = self._cache.get(key)
        if grammar is not None:
            done(grammar, None)
            return
        once = _Once(done)
        timer = threading.Timer(self._time_limit, once, (None, "The grammar takes too long to compile."))
        timer.daemon = True
        timer.start()
        self._pool.submit(self._compile, constraint, key, once, timer)

    def _compile(self, constraint: Constraint, key: bytes, done: _Once, timer: threading.Timer) -> None:
        try:
            grammar = self.backend.compile(constraint)
        except ConstraintError as error:
            done(None, str(error))
        except Exception as error:  # a library's own errors
            done(None, f"The grammar cannot be compiled: {str(error).strip().splitlines()[0][:300]}")
        else:
            with self._lock:
                self._cache[key] = grammar
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
            done(grammar, None)
        finally:
            timer.cancel()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Once:
    """Passes on the first call alone."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._called = False

    def __call__(self, grammar: Grammar | None, error: str | None) -> None:
        with self._lock:
            first, self._called = not self._called, True
        if first:
            self._done(grammar, error)
