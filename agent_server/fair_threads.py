"""Threads for Python work on the data of requests, which tenants get in turn.

Such work holds the interpreter's lock, so two threads are slower than one (7 or 8 requests a second of 1,901 messages
each, instead of 9 or 10), and the event loop waits for each of them before it runs again. So a tenant gets one, and the
others are for other tenants. The time that the loop waits for each is SWITCH_SECONDS, where `agent-server` set it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from agent_server.user import current_user

P = ParamSpec("P")
T = TypeVar("T")
SWITCH_SECONDS = 0.0002
"""For `sys.setswitchinterval`, whose default of 5 ms is long beside the turns of an event loop: beside four clients
that post long chats, the median answer to a small request took 57 ms, and 18 ms with 0.5 ms. Beside forty clients, a
tenth of the small requests took longer than 6 ms with 0.5 ms, and a fiftieth with this; the chats take 5 % longer."""


_INSTANCES: WeakSet[FairThreads] = WeakSet()
"""All that exist. A full garbage collection waits until none has work."""


class FairThreads:
    """Some threads, of which each tenant gets one at a time. The tenant is that of the current user."""

    def __init__(self, name: str, *, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        """The tenants whose work is running."""
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        """Of each tenant, the tenant whose turn is next first."""
        _INSTANCES.add(self)

    @staticmethod
    def any_is_busy() -> bool:
        """Whether work of any instance is running or waiting."""
        return any(each._running or each._waiting for each in list(_INSTANCES))

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` in one of the threads, in the context of the caller. Work that has begun is not cancelled."""
        return await asyncio.wrap_future(self.submit(partial(copy_context().run, partial(work, *args, **kwargs))))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(current_user.get().tenant, deque()).append((future, work))
        self._pool.submit(self._run_next)
        return future

    def close(self) -> None:
        """Cancel the work that waits, and do not wait for what is running."""
        with self._lock:
            waiting = list(itertools.chain(*self._waiting.values()))
            self._waiting.clear()
        for future, _ in waiting:
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_next(self) -> None:
        """Run the next work, if there is any of a tenant that has no thread already."""
        with self._lock:
            tenant = next((each for each in self._waiting if each not in self._running), None)
            if tenant is None:
                return
            queue = self._waiting.pop(tenant)
            future, work = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the other tenants
            self._running.add(tenant)
        try:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # as ThreadPoolExecutor does
                    future.set_exception(error)
        finally:
            del future, work  # the error's traceback refers to this frame
            with self._lock:
                self._running.remove(tenant)
                waits = tenant in self._waiting
            if waits:
                self._pool.submit(self._run_next)


REQUEST_THREADS = FairThreads("request")
"""For work that always ends; chat templates have threads of their own."""
