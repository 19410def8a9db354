"""Who may ask for what: the list of public paths, and the scope that every other path needs. Deny by default.

A key or a token is sent as `Authorization: Bearer KEY`, `x-api-key: KEY` (Anthropic's SDK) or, on WebSockets where a
browser can set no header, as `?api_key=KEY`. It belongs to a tenant, and the tenant is part of every store key and
every look-up of a run, so that a foreign id reads as one that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Literal, Protocol, get_args
from urllib.parse import parse_qs

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.http.auth.keys_file import Keys, KeysFile, KeysFileError
from agent_server.http.auth.quotas import SAFE_METHODS, Quotas
from agent_server.http.auth.token_issuer import Issuer
from agent_server.http.middleware.context import claim_of, first_headers
from agent_server.http.middleware.errors import error_response, refuse_websocket, route_path
from agent_server.observability.telemetry import note_ids
from agent_server.settings import Settings
from agent_server.user import User, current_user

Access = Literal["use", "operate", "metrics"]
SCOPES: frozenset[Access] = frozenset(get_args(Access))
"""use: every wire and its threads. operate: the paths under /operator/. metrics: /metrics."""
USE_AND_METRICS: frozenset[Access] = frozenset({"use", "metrics"})
OPERATE_AND_METRICS: frozenset[Access] = frozenset({"operate", "metrics"})


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may take; 0 sets no limit. requests_per_minute, tokens_per_minute: tokens are
    those of prompts and answers. runs: at once. max_tokens: of one answer. context: tokens of a prompt and
    its answer together."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    runs: int = 0
    max_tokens: int = 0
    context: int = 0


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """tenant: part of every key of the store and of every look-up of a run. name: of the key, or the token's subject;
    it stands in logs, and no secret does. expires: seconds since the epoch; None for never. claims: of a token, all of
    them; policies say which are passed on."""

    tenant: str = ""
    name: str = ""
    scopes: frozenset[Access] = frozenset()
    quota: Quota = Quota()
    expires: float | None = None
    claims: Mapping[str, object] = {}


asking: ContextVar[Principal | None] = ContextVar("asking", default=None)
"""Who asks, in the task of a request and those that it starts."""
over_websocket: ContextVar[bool] = ContextVar("over_websocket", default=False)
ANYONE = Principal(scopes=USE_AND_METRICS)
"""Who asks a server that has no keys."""


def enter_principal(scope: Scope, principal: Principal, user_header: str = "") -> None:
    """Make known to the routes and to the runs that they start who asks. user_header: in which an application with a
    key names its user; not believed of those who have none."""
    note_ids(tenant=principal.tenant, key=principal.name)
    scope.setdefault("state", {}).update(tenant=principal.tenant, principal=principal)
    named = ""
    if user_header and principal is not ANYONE:
        named = first_headers(scope).get(user_header.lower().encode(), b"").decode("latin-1").strip()
    user = User(tenant=principal.tenant, name=named or principal.name, claims=principal.claims, sent=scope["headers"])
    scope["state"]["user"] = user
    current_user.set(user)


def principal_of(scope: Scope) -> Principal:
    """Who asks; one who may nothing where nobody was admitted."""
    found = scope.get("state", {}).get("principal")
    return found if isinstance(found, Principal) else Principal()


SEVERAL = 2


class KeySource(Protocol):
    """What knows keys; those that are asked at every request answer without waiting."""

    @property
    def tenants(self) -> set[str]: ...

    def find(self, presented: str) -> Principal | None: ...


class Authority:
    """keys, operators: of the settings. Without keys, a file of keys and an issuer everybody may use the server; the
    operators' paths are closed even then. user_header: in which an application that has a key names its user."""

    def __init__(
        self,
        keys: Keys | None = None,
        operators: Keys | None = None,
        *,
        file: KeysFile | None = None,
        issuer: Issuer | None = None,
        clock: Callable[[], float] = time.time,
        user_header: str = "",
    ) -> None:
        operators = operators or Keys((), OPERATE_AND_METRICS)
        self._open = not keys and file is None and issuer is None
        self._operated = bool(operators) or file is not None or issuer is not None
        self._sources: Sequence[KeySource] = [each for each in (keys, operators, file) if each is not None]
        self._issuer = issuer
        self._clock = clock
        self.user_header = user_header
        self.file = file
        self.several = self.tenants > 1
        """Whether there may be several tenants."""
        self.may_revoke = file is not None or issuer is not None
        """Whether a key that was good may stop being so while the server runs."""

    @property
    def tenants(self) -> int:
        """How many tenants there are, as far as is known: an issuer may name any number."""
        known = len({tenant for source in self._sources for tenant in source.tenants}) or 1
        return known if self.file is None and self._issuer is None else max(known, SEVERAL)

    async def admit(self, presented: str | None, needed: Access) -> Principal:
        """Who asks. RequestError("unauthorized") for what proves nothing, "forbidden" where it opens something else."""
        if needed == "operate" and not self._operated:
            raise RequestError("forbidden", "This server has no operator: set AGENT_SERVER_OPERATOR_KEYS.")
        found = await self._find(presented or "")
        if found is None or (found is ANYONE and needed not in found.scopes):
            raise RequestError("unauthorized", _asking(needed))
        if needed not in found.scopes:
            raise RequestError("forbidden", f"This key does not open this path: it needs the scope {needed}.")
        return found

    def has_lapsed(self, presented: str, principal: Principal, *, expires: bool) -> bool:
        """Whether a key that was admitted has been revoked or changed since, or, with `expires`, is past its time. A
        token is not revoked."""
        if principal.expires is not None and principal.expires <= self._clock():
            return expires
        if self._issuer is not None and self._issuer.may_have_made(presented):
            return False
        found = [each for source in self._sources if (each := source.find(presented)) is not None]
        return not found or found[0].tenant != principal.tenant or not principal.scopes & found[0].scopes

    async def _find(self, presented: str) -> Principal | None:
        if presented and self._issuer is not None and self._issuer.may_have_made(presented):
            return await self._issuer.find(presented)
        found = [principal for source in self._sources if (principal := source.find(presented)) is not None]
        return found[0] if found and presented else ANYONE if self._open else None


def _asking(needed: Access) -> str:
    whose = "an operator's key" if needed == "operate" else "an API key"
    return f"This path asks for {whose}: send Authorization: Bearer KEY."


def configured_authority(settings: Settings) -> Authority:
    """Raises ValueError with one sentence. A file of keys that cannot be read is no reason to admit everybody."""
    return Authority(
        Keys(key.get_secret_value() for key in settings.access.api_keys),
        Keys((key.get_secret_value() for key in settings.access.operator_keys), OPERATE_AND_METRICS),
        file=keys_file(settings),
        issuer=issuer(settings),
        user_header=settings.access.user_header,
    )


def keys_file(settings: Settings) -> KeysFile | None:
    if settings.access.keys_file is None:
        return None
    file = KeysFile(settings.access.keys_file)
    try:
        file.load()
    except KeysFileError as error:
        raise ValueError(
            f"The keys file {settings.access.keys_file} cannot be used: {error}. agent-server keys new makes one."
        ) from error
    return file


def issuer(settings: Settings) -> Issuer | None:
    if not settings.issuer.issuer:
        return None
    if fault := settings.issuer.fault():
        raise ValueError(fault)
    return Issuer(settings.issuer)


PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico", "/favicon.svg", "/oauth/callback"})
PUBLIC_PREFIXES = ("/assets/",)
PROBES = frozenset({"/health", "/ready"})
"""Public paths that are answered on the connections that are kept in reserve."""
OPERATOR_PREFIX = "/operator/"
"""Paths below it take an operator's key and no tenant's; without such keys nobody may use them."""
METRICS_PATH = "/metrics"


def presented_key(headers: Mapping[bytes, bytes], query: str = "") -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    if (key := headers.get(b"x-api-key", b"").decode("latin-1")) or not query:
        return key or None
    return next(iter(parse_qs(query).get("api_key", [])), None)


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def needed_scope(scope: Scope) -> Access | None:
    """What a request must be allowed to; None for what is public."""
    path = route_path(scope)
    if path.startswith(OPERATOR_PREFIX):
        return "operate"
    if scope["type"] == "http" and (is_public(path) or scope["method"] == "OPTIONS"):
        return None
    return "metrics" if path == METRICS_PATH else "use"


class AuthMiddleware:
    """Puts who asks into the scope's state, or answers 401 or 403 in the shape of the wire that was asked."""

    def __init__(self, app: ASGIApp, authority: Authority, quotas: Quotas | None = None) -> None:
        self.app = app
        self.authority = authority
        self.quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            await admit(scope, self.authority, self.quotas)
        except RequestError as refusal:
            if scope["type"] == "websocket":
                await refuse_websocket(scope, receive, send, refusal)
            else:
                await refused_answer(scope, refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def admit(
    scope: Scope, authority: Authority, quotas: Quotas | None, headers: Mapping[bytes, bytes] | None = None
) -> None:
    """Find who asks, claim the connection for them, count the request, and make both known to the routes. headers: its
    `first_headers`, if they were read already. Raises RequestError."""
    claim = claim_of(scope)
    if (needed := needed_scope(scope)) is None:
        enter_principal(scope, Principal())
        if claim is not None and route_path(scope) not in PROBES:
            claim.check_reserve()
        return
    presented = _presented_in(scope, headers)
    found = await authority.admit(presented, needed)
    if claim is not None and needed == "use":
        tenant = None if found is ANYONE else found.tenant
        claim(tenant, shares=authority.several, lapsed=_lapsed(scope, authority, presented, found))
    if quotas is not None and needed == "use":
        await quotas.request(scope, found)
    enter_principal(scope, found, authority.user_header)


def _presented_in(scope: Scope, headers: Mapping[bytes, bytes] | None = None) -> str | None:
    query = scope.get("query_string", b"").decode("latin-1") if scope["type"] == "websocket" else ""
    return presented_key(first_headers(scope) if headers is None else headers, query)


def _lapsed(scope: Scope, authority: Authority, presented: str | None, found: Principal) -> Callable[[], bool] | None:
    """Whether a connection that stays open was opened with a key that is not valid any more. What a key was admitted to
    begin, an answer or the runs on a WebSocket, may end after the key has expired, but not after it was revoked."""
    if not presented or not authority.may_revoke:
        return None
    reads = scope["type"] == "http" and scope["method"] in SAFE_METHODS
    return partial(authority.has_lapsed, presented, found, expires=reads)


async def admit_again(scope: Scope, authority: Authority) -> None:
    """Whether who opened a connection may begin something more on it. RequestError("unauthorized") where the key has
    expired, was revoked, or belongs to another tenant now."""
    found = await authority.admit(_presented_in(scope), "use")
    before = principal_of(scope)
    if found.tenant != before.tenant:
        raise RequestError("unauthorized", "This key belongs to another tenant now: connect again.")
    asking.set(found)
    if found != before:
        enter_principal(scope, found, authority.user_header)


def has_expired(scope: Scope) -> bool:
    """Whether the key that opened a connection is past its time."""
    expires = principal_of(scope).expires
    return expires is not None and expires <= time.time()


def refused_answer(scope: Scope, refusal: RequestError) -> Response:
    """The answer to a request over HTTP that was not admitted."""
    answer = error_response(scope, refusal)
    if refusal.kind == "unauthorized":
        answer.headers["www-authenticate"] = "Bearer"  # RFC 9110, 11.6.1
    return answer
