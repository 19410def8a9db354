"""The principal of a request: what a valid key or token grants."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal, get_args

import msgspec
from starlette.types import Scope

from agent_server.http.middleware.context import first_headers
from agent_server.observability.telemetry import note_ids
from agent_server.user import User, current_user

Access = Literal["use", "operate", "metrics"]


SCOPES: frozenset[Access] = frozenset(get_args(Access))
"""use: every wire and the tenant's threads. operate: the paths under /operator/. metrics: /metrics."""


USE_AND_METRICS: frozenset[Access] = frozenset({"use", "metrics"})


OPERATE_AND_METRICS: frozenset[Access] = frozenset({"operate", "metrics"})


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one key; 0 sets no limit.

    tokens_per_minute: of prompts and answers. runs: concurrent ones. max_tokens: of one answer. context: tokens of a
    prompt and its answer together.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    runs: int = 0
    max_tokens: int = 0
    context: int = 0


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated client.

    tenant: part of every store key and of every look-up of a run. name: of the key, or the token's subject; it appears
    in logs, unlike secrets. expires: seconds since the epoch; None for never. claims: all claims of a token; policies
    select those that are passed on.
    """

    tenant: str = ""
    name: str = ""
    scopes: frozenset[Access] = frozenset()
    quota: Quota = Quota()
    expires: float | None = None
    claims: Mapping[str, object] = {}


asking: ContextVar[Principal | None] = ContextVar("asking", default=None)
"""The principal, in the task of a request and in tasks that it starts."""


def asking_tenant() -> str:
    """Return the tenant of the request that the current task belongs to."""
    principal = asking.get()
    return "" if principal is None else principal.tenant


over_websocket: ContextVar[bool] = ContextVar("over_websocket", default=False)


ANYONE = Principal(scopes=USE_AND_METRICS)
"""The principal of every request to a server without keys."""


def enter_principal(scope: Scope, principal: Principal, user_header: str = "") -> None:
    """Store the principal for the routes and for the runs that they start.

    user_header: the header in which an application with a key names its user; ignored for clients without a key.
    """
    note_ids(tenant=principal.tenant, key=principal.name)
    scope.setdefault("state", {}).update(tenant=principal.tenant, principal=principal)
    named = ""
    if user_header and principal is not ANYONE:
        named = first_headers(scope).get(user_header.lower().encode(), b"").decode("latin-1").strip()
    user = User(tenant=principal.tenant, name=named or principal.name, claims=principal.claims, sent=scope["headers"])
    scope["state"]["user"] = user
    current_user.set(user)


def principal_of(scope: Scope) -> Principal:
    """The principal of a request; one without any access if none was admitted."""
    principal = scope.get("state", {}).get("principal")
    return principal if isinstance(principal, Principal) else Principal()
