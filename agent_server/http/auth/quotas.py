"""Limits of tenants and keys: requests and tokens per minute, concurrent runs, tokens of one answer and its prompt.

An HTTP request counts unless its method is safe, such as GET. On a WebSocket, each run and each app's request counts.

Windows are fixed minutes, counted by the library `limits` in this process, or in Redis for several gateways together.
Tokens are known only when a run has ended, so a run may exceed the limit, and the next one is refused. If the counters
cannot be reached, requests are accepted, and the log says that limits are not counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from limits import RateLimitItemPerMinute
from limits.aio.strategies import FixedWindowRateLimiter
from limits.storage import storage_from_string
from starlette.types import Scope

from adapters.errors import RequestError
from agent_server.http.auth.principal import Principal, Quota, asking, over_websocket
from agent_server.http.middleware.context import context_of
from events.options import GenerationOptions

log = logging.getLogger("agent_server.auth")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WINDOW = 60
UNBOUNDED = Quota()


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A limit per minute. what: "requests" or "tokens". whose: the counter's key, of a tenant or an API key."""

    what: str
    whose: str
    amount: int

    @property
    def item(self) -> RateLimitItemPerMinute:
        return RateLimitItemPerMinute(self.amount, namespace=self.what)


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a limit. reset: seconds until its window ends."""

    bound: Bound
    remaining: int
    reset: int


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """An admitted run.

    caller: the key to count its runs under. spent: call it with the tokens when the run has ended.
    """

    options: GenerationOptions
    caller: str
    spent: Callable[[int], None]


class Quotas:
    """Counts requests, tokens and runs, and refuses those beyond a limit.

    tenant_requests, tenant_tokens: per minute and tenant; 0 sets no limit. tenant_context: tokens of a prompt and its
    answer together. storage: URL for the library `limits`, such as `async+memory://` or `async+redis://HOST`.
    """

    def __init__(
        self,
        *,
        tenant_requests: int = 0,
        tenant_tokens: int = 0,
        tenant_context: int = 0,
        storage: str = "async+memory://",
        prefix: str = "agent-server",
    ) -> None:
        self._tenant = {"requests": tenant_requests, "tokens": tenant_tokens}
        self._context = tenant_context
        self._unbounded = not (tenant_requests or tenant_tokens or tenant_context)
        more: dict[str, Any] = {}
        if not storage.startswith("async+memory"):
            more = {"implementation": "redispy", "key_prefix": f"{prefix}:limits"}
        self._storage: Any = storage_from_string(storage, **more)
        self._limiter = FixedWindowRateLimiter(self._storage)
        self._counting: set[asyncio.Task[Any]] = set()

    # requests

    async def request(self, scope: Scope, principal: Principal) -> None:
        """Count an HTTP request, and store the state of the limits for the answer's headers.

        Raises RequestError("rate_limited").
        """
        asking.set(principal)
        over_websocket.set(scope["type"] == "websocket")
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return
        if not self._counts(principal):
            return
        bounds = [*self._bounds(principal, "requests"), *self._bounds(principal, "tokens")]
        within = [await self._count(bound) for bound in bounds if bound.what == "requests"]
        states = [await self._state(bound) for bound in bounds]
        if (context := context_of(scope)) is not None:
            context.headers += headers_of(states)
        self._refuse(states, over=not all(within))

    # runs

    async def admit(self, options: GenerationOptions, running: Callable[[str], int], tenant: str) -> Admission:
        """Admit a run.

        running: returns the number of a caller's active runs. Raises RequestError("rate_limited"), and RequestError
        ("invalid_request") if the requested answer is longer than the key allows.
        """
        principal = asking.get() or Principal(tenant=tenant)
        caller = _caller(principal)
        quota = principal.quota
        if not self._counts(principal) and not (options.most_tokens or options.most_context):
            return Admission(options=options, caller=caller, spent=lambda tokens: None)
        if quota.runs and running(caller) >= quota.runs:
            message = f"This key has reached its limit of {quota.runs} concurrent runs."
            raise RequestError("rate_limited", message, retry_after=1.0)
        tokens = self._bounds(principal, "tokens")
        states = [await self._state(bound) for bound in tokens]
        self._refuse(states, over=False)
        if over_websocket.get():
            await self._count_request(principal)
        most = min((each for each in (quota.context, self._context) if each), default=0)
        bounded = msgspec.structs.replace(options, most_tokens=quota.max_tokens, most_context=most)
        # A request for a longer answer, or without a limit, gets the key's.
        requested_tokens = options.sampling.max_tokens
        if quota.max_tokens and (requested_tokens is None or requested_tokens > quota.max_tokens):
            sampling = msgspec.structs.replace(options.sampling, max_tokens=quota.max_tokens)
            bounded = msgspec.structs.replace(bounded, sampling=sampling)

        def spend(used: int) -> None:
            for bound in tokens if used else ():
                task = asyncio.get_running_loop().create_task(self._count(bound, used))
                self._counting.add(task)
                task.add_done_callback(self._counting.discard)

        return Admission(options=bounded, caller=caller, spent=spend)

    async def answer_app(self, tenant: str) -> None:
        """Count an app's request on a WebSocket, which starts no run. Raises RequestError("rate_limited")."""
        await self._count_request(asking.get() or Principal(tenant=tenant))

    async def _count_request(self, principal: Principal) -> None:
        requests = self._bounds(principal, "requests")
        within = [await self._count(bound) for bound in requests]
        self._refuse([await self._state(bound) for bound in requests], over=not all(within))

    async def close(self) -> None:
        """Wait for pending counts and close the storage."""
        await asyncio.gather(*self._counting, return_exceptions=True)
        if (bridge := getattr(self._storage, "bridge", None)) is not None:  # Redis; the library cannot close it
            await bridge.storage.aclose()

    # counting

    def _counts(self, principal: Principal) -> bool:
        """Whether any limit applies to the principal."""
        return not self._unbounded or principal.quota != UNBOUNDED

    def _bounds(self, principal: Principal, what: str) -> list[Bound]:
        own = getattr(principal.quota, f"{what}_per_minute")
        amounts = {f"tenant:{principal.tenant}": self._tenant[what], f"key:{_caller(principal)}": own}
        return [Bound(what=what, whose=whose, amount=amount) for whose, amount in amounts.items() if amount]

    async def _count(self, bound: Bound, cost: int = 1) -> bool:
        return bool(await self._read_counter(self._limiter.hit(bound.item, bound.whose, cost=cost), True))

    async def _state(self, bound: Bound) -> LimitState:
        stats = await self._read_counter(self._limiter.get_window_stats(bound.item, bound.whose), None)
        if stats is None:
            return LimitState(bound=bound, remaining=bound.amount, reset=WINDOW)
        reset = max(1, math.ceil(stats.reset_time - time.time()))
        untouched = stats.remaining >= bound.amount
        return LimitState(bound=bound, remaining=stats.remaining, reset=WINDOW if untouched else min(reset, WINDOW))

    @staticmethod
    async def _read_counter(query: Awaitable[object], default: Any) -> Any:
        """Await a counter's answer; `default` if it cannot be reached. Storages raise errors of many classes."""
        try:
            return await query
        except Exception as error:
            log.warning("limits are not counted: %s", type(error).__name__)
            return default

    @staticmethod
    def _refuse(states: Sequence[LimitState], *, over: bool) -> None:
        """Raise RequestError if a limit is used up.

        over: the request exceeded one; tokens are refused when none are left.
        """
        spent = [each for each in states if not each.remaining and (over or each.bound.what == "tokens")]
        if spent:
            first = max(spent, key=lambda each: each.reset)
            message = f"You have reached the limit of {first.bound.amount} {first.bound.what} per minute."
            raise RequestError("rate_limited", message, retry_after=float(first.reset))


def headers_of(states: Sequence[LimitState]) -> list[tuple[bytes, bytes]]:
    """The tightest limit of each kind as `RateLimit` and `RateLimit-Policy` headers
    (draft-ietf-httpapi-ratelimit-headers-10)."""
    tightest: dict[str, LimitState] = {}
    for state in sorted(states, key=lambda each: -each.remaining):
        tightest[state.bound.what] = state
    if not tightest:
        return []
    policy = ", ".join(f'"{what}";q={state.bound.amount};w={WINDOW}' for what, state in tightest.items())
    limit = ", ".join(f'"{what}";r={state.remaining};t={state.reset}' for what, state in tightest.items())
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", limit.encode())]


def _caller(principal: Principal) -> str:
    return f"{principal.tenant}\x1f{principal.name}"


def storage_url(redis_url: str) -> str:
    """The URL of the counters' storage: the Redis that gateways share, or memory."""
    scheme, colon, rest = redis_url.partition(":")
    if not redis_url:
        return "async+memory://"
    return {"unix": "async+redis+unix"}.get(scheme, f"async+{scheme}") + colon + rest
