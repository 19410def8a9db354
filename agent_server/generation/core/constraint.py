"""Grammars on the output: compiled beside the engine's thread, then one mask for each constrained row and step.

What compiles is a backend behind two small protocols; the core knows nothing of grammars but these.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import msgspec

from agent_server.engine_protocol.protocol import Constraint, EngineError

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("agent_server.generation")

MAX_BYTES = 512 * 1024
"""Larger constraints are refused."""
MAX_CACHED = 64
TIME_LIMIT = 2.0
"""Seconds that compiling may take once it has begun."""


class ConstraintError(Exception):
    """The constraint cannot be honoured; the message is one sentence for the client."""


class Matcher(Protocol):
    """Where one generation stands in its grammar."""

    def accept(self, token: int) -> bool:
        """Advance by a token; False if the grammar does not allow it, which is then of no more use."""

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""

    @property
    def accepting(self) -> bool:
        """The end may follow."""

    @property
    def forced(self) -> int | None:
        """The only token that may follow, where there is no other and no end; None also where that is not known."""

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on: it came to need more work than is allowed."""


class Grammar(Protocol):
    """A compiled constraint, shared by the generations that ask for the same."""

    def matcher(self) -> Matcher: ...


class Backend(Protocol):
    """Compiles constraints and fills masks. `ends`: the ids that it allows where an answer may end."""

    @property
    def ends(self) -> Sequence[int]: ...

    def compile(self, constraint: Constraint) -> Grammar:
        """Blocking; raises ConstraintError."""

    def fill(self, matchers: Sequence[Matcher], bits: Tensor) -> None:
        """The masks of all matchers in one go: `bits` `[matchers, ceil(vocabulary / 32)]` int32 on the CPU, a set bit
        allows the token, least significant bit first."""

    def close_string(self, row: Tensor) -> bool:
        """Leave of one mask what closes the JSON string that it stands in; False where it stands in none."""


Done = Callable[[Grammar | None, str | None], None]


class Compiler:
    """Compiles off the engine's thread, with a cache, a size limit and a time limit.

    A compilation that exceeds its time is reported as failed; its thread goes on until the backend, which bounds its
    own work, gives up. `counts`: what the engine's metrics show.
    """

    def __init__(self, backend: Backend, *, threads: int = 2, time_limit: float = TIME_LIMIT) -> None:
        self.backend = backend
        self._time_limit = time_limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._cache: OrderedDict[bytes, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self.counts = {
            "grammar_cache_queries_total": 0.0,
            "grammar_cache_hits_total": 0.0,
            "grammar_refused_total": 0.0,
            "grammar_compile_seconds_sum": 0.0,
            "grammar_compile_seconds_count": 0.0,
        }

    def compile(self, constraint: Constraint, done: Done) -> None:
        """Call `done(grammar, None)` or `done(None, why not)` exactly once, now or from another thread."""
        key = msgspec.json.encode(constraint, order="deterministic")
        if len(key) > MAX_BYTES:
            self._count(grammar_refused_total=1)
            done(None, f"The grammar has {len(key)} bytes; at most {MAX_BYTES} are allowed.")
            return
        with self._lock:
            grammar = self._cache.get(key)
            if grammar is not None:
                self._cache.move_to_end(key)
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
        grammar, error = self._attempt(constraint)
        timer.cancel()
        self._count(grammar_compile_seconds_sum=time.monotonic() - began, grammar_compile_seconds_count=1)
        if grammar is None:
            self._count(grammar_refused_total=1)
        else:
            with self._lock:
                self._cache[key] = grammar
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
        done(grammar, error)

    def _attempt(self, constraint: Constraint) -> tuple[Grammar | None, str | None]:
        try:
            return self.backend.compile(constraint), None
        except ConstraintError as error:
            return None, str(error)
        except Exception as error:  # a library's own errors
            return None, f"The grammar cannot be compiled: {(str(error).strip().splitlines() or ['?'])[0][:300]}"

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self.counts[name] += amount

    def fill(self, matchers: Sequence[Matcher], ends: Sequence[Collection[int]], bits: Tensor) -> None:
        """The masks of all rows, each with its own tokens that end an answer, in `bits`."""
        self.backend.fill(matchers, bits)
        known = frozenset(self.backend.ends)
        words = bits.numpy().view("uint32")
        for row, (matcher, wanted) in enumerate(zip(matchers, ends, strict=True)):
            more = [token for token in wanted if token not in known]
            if more and matcher.accepting:
                for token in more:
                    words[row, token >> 5] |= 1 << (token & 31)
            for token in known.difference(wanted):
                words[row, token >> 5] &= ~(1 << (token & 31)) & 0xFFFFFFFF

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Once:
    """Passes on the first call alone."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._lock = threading.Lock()
        self.called = False

    def __call__(self, grammar: Grammar | None, error: str | None) -> None:
        with self._lock:
            first, self.called = not self.called, True
        if first:
            self._done(grammar, error)


def lost(matcher: Matcher) -> EngineError:
    """A grammar that cannot go on. Its masks allow what it accepts, so this is a limit it ran into."""
    logger.warning("A grammar could not go on: %s", matcher.error)
    return EngineError("invalid_request", "The grammar needs too much work to go on.", param="response_format")
