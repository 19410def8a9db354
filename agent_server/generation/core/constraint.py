"""Grammars on the output: compiled outside the engine's thread, then one mask for each constrained row and step.

The core uses the backend that compiles them only through the protocols below.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import msgspec

from agent_server.bounded import BoundedCache
from agent_server.engine_protocol.protocol import Constraint, EngineError

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("agent_server.generation")

MAX_BYTES = 512 * 1024
"""Larger constraints are refused."""
MAX_CACHED, SMALL = 1024 * 1024, 16 * 1024
"""Bytes of all cached constraints, and those that a small one counts as. A grammar takes up to a hundred times its
constraint."""
TIME_LIMIT = 2.0
"""Seconds that a compilation may take once it has started."""


class ConstraintError(Exception):
    """The constraint cannot be honoured; the message is one sentence for the client."""


class Matcher(Protocol):
    """The state of one generation in its grammar."""

    def accept(self, token: int) -> bool:
        """Advance by a token; return False if the grammar does not allow it. The matcher is then unusable."""

    def rollback(self, count: int) -> None:
        """Undo the last `count` tokens."""

    @property
    def finished(self) -> bool:
        """Whether the answer must end here."""

    @property
    def accepting(self) -> bool:
        """Whether the answer may end here."""

    @property
    def forced(self) -> Sequence[int]:
        """The next tokens, as far as nothing else may follow; none if the answer may end here. There may be more than
        are known here."""

    @property
    def error(self) -> str | None:
        """Why the matcher cannot continue: the grammar exceeded the limits on its work."""


class Grammar(Protocol):
    """A compiled constraint, shared by all generations with the same constraint."""

    def matcher(self) -> Matcher: ...


class Backend(Protocol):
    """Compiles constraints and fills masks. ends: the token ids that it allows where an answer may end."""

    @property
    def ends(self) -> Sequence[int]: ...

    def compile(self, constraint: Constraint) -> Grammar:
        """Blocking; raises ConstraintError."""

    def fill(self, matchers: Sequence[Matcher], bits: Tensor) -> None:
        """Fill the masks of all matchers: `bits` `[matchers, ceil(vocabulary / 32)]` int32 on the CPU. A set bit allows
        the token, least significant bit first."""

    def close_string(self, row: Tensor) -> bool:
        """Restrict a mask to the tokens that close the JSON string it is in; return False if it is not in one."""


Done = Callable[[Grammar | None, str | None], None]


class Compiler:
    """Compiles in threads of its own, with a cache, a size limit and a time limit.

    A compilation that exceeds the time limit is reported as failed. Its thread continues until the backend, which
    bounds its own work, stops. `counts`: counters for the engine's metrics.
    """

    def __init__(self, backend: Backend, *, threads: int = 2, time_limit: float = TIME_LIMIT) -> None:
        self.backend = backend
        self._time_limit = time_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._cache: BoundedCache[bytes, Grammar] = BoundedCache(MAX_CACHED, lambda key, _: max(len(key), SMALL))
        self._lock = threading.Lock()
        self.counts = {
            "grammar_cache_queries_total": 0.0,
            "grammar_cache_hits_total": 0.0,
            "grammar_refused_total": 0.0,
            "grammar_compile_seconds_sum": 0.0,
            "grammar_compile_seconds_count": 0.0,
        }

    def compile(self, constraint: Constraint, done: Done) -> None:
        """Compile a constraint. Calls `done(grammar, None)` or `done(None, message)` exactly once, before it returns or
        from another thread."""
        key = msgspec.json.encode(constraint, order="deterministic")
        if len(key) > MAX_BYTES:
            self._count(grammar_refused_total=1)
            done(None, f"The grammar has {len(key)} bytes; the limit is {MAX_BYTES}.")
            return
        grammar = self._cache.get(key)
        self._count(grammar_cache_queries_total=1, grammar_cache_hits_total=grammar is not None)
        if grammar is not None:
            done(grammar, None)
        else:
            self._pool.submit(self._compile, constraint, key, _Once(done))

    def _compile(self, constraint: Constraint, key: bytes, done: _Once) -> None:
        timer = threading.Timer(self._time_limit, done, (None, "The grammar takes too long to compile."))
        timer.daemon = True
        timer.start()
        began = time.monotonic()
        grammar: Grammar | None = None
        message: str | None = None
        try:
            grammar = self.backend.compile(constraint)
        except ConstraintError as error:
            message = str(error)
        except Exception as error:  # a library's own errors
            message = f"The grammar cannot be compiled: {(str(error).strip().splitlines() or ['?'])[0][:300]}"
        timer.cancel()
        self._count(grammar_compile_seconds_sum=time.monotonic() - began, grammar_compile_seconds_count=1)
        if grammar is None:
            self._count(grammar_refused_total=1)
        else:
            self._cache.put(key, grammar)
        done(grammar, message)

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self.counts[name] += amount

    def fill(self, matchers: Sequence[Matcher], ends: Sequence[Collection[int]], bits: Tensor) -> None:
        """Fill the masks of all rows, where each row has its own tokens that end an answer."""
        self.backend.fill(matchers, bits)
        backend_ends = frozenset(self.backend.ends)
        words = bits.numpy().view("uint32")
        for row, (matcher, row_ends) in enumerate(zip(matchers, ends, strict=True)):
            extra_ends = [token for token in row_ends if token not in backend_ends]
            if extra_ends and matcher.accepting:
                for token in extra_ends:
                    words[row, token >> 5] |= 1 << (token & 31)
            for token in backend_ends.difference(row_ends):
                words[row, token >> 5] &= ~(1 << (token & 31)) & 0xFFFFFFFF

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Once:
    """A callback that ignores all calls but the first."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._lock = threading.Lock()
        self.called = False

    def __call__(self, grammar: Grammar | None, error: str | None) -> None:
        with self._lock:
            first, self.called = not self.called, True
        if first:
            self._done(grammar, error)


def matcher_failure(matcher: Matcher) -> EngineError:
    """Return the error for a matcher that rejected a token. Its masks allow only what it accepts, so it exceeded a
    limit."""
    logger.warning("A grammar matcher failed: %s", matcher.error)
    message = "The grammar exceeded the limits on its work. Use a simpler one."
    return EngineError("invalid_request", message, param="response_format")
