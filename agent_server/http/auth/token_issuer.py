"""Tokens of an OpenID Connect issuer: JWTs, verified against the keys that the issuer publishes (RFC 7519, 7517, 8725;
OpenID Connect Discovery 1.0).

Only asymmetric signatures are accepted: `none`, and HMAC with a published key as its secret, are the known ways around
such checks (RFC 8725, 2.1).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2
import jwt
import msgspec

from adapters.errors import RequestError
from agent_server.certificates import ssl_context
from agent_server.http.auth.principal import SCOPES, Principal, Quota
from agent_server.settings import IssuerSettings

log = logging.getLogger("agent_server.auth")
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
FRESH_SECONDS = 300.0
"""How long the issuer's keys are used before they are fetched again."""
PAUSE_SECONDS = 10.0
"""The minimum time between two fetches of the keys, so that tokens with invented key ids do not burden the issuer."""
MOST_PAUSE_SECONDS = 300.0
"""The maximum of that pause, which grows while the issuer fails."""
STALE_SECONDS = 24 * 3600.0
"""How long the last keys are used while the issuer cannot be reached."""
FETCH_SECONDS = 5.0
RENEW_SECONDS = 15.0
"""Limit on the time to fetch the issuer's metadata and keys together."""
MAX_LIFETIME_SECONDS = 366 * 24 * 3600.0
"""Limit on how far ahead a token expires. A later expiry is a mistake, such as milliseconds."""
MAX_NAME = 256
"""Characters of a tenant's or subject's name, which appear in store keys and logs."""
DOCUMENT_BYTES = 512 * 1024
MAX_TOKEN = 16 * 1024
DISCOVERY = "/.well-known/openid-configuration"
Fetch = Callable[[str], Awaitable[Mapping[str, object]]]


async def fetch_json(url: str) -> Mapping[str, object]:
    """Fetch a JSON object. Raises OSError or ValueError."""
    try:
        async with (
            httpx2.AsyncClient(timeout=FETCH_SECONDS, verify=ssl_context()) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as answer,
        ):
            answer.raise_for_status()
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > DOCUMENT_BYTES:
                    raise ValueError(f"more than {DOCUMENT_BYTES} bytes")
    except httpx2.HTTPError as error:
        raise OSError(f"{type(error).__name__} {error}".strip()) from error
    return msgspec.json.decode(body, type=dict[str, object])


class IssuerKeys:
    """The keys that an issuer publishes. They are fetched again when they are old, and when a token names an unknown
    key, since that is how issuers rotate keys.

    One fetch runs at a time, in a task of its own, with growing pauses while the issuer fails. Tokens whose key is
    known do not wait for it.
    """

    def __init__(self, settings: IssuerSettings, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched = self._tried = float("-inf")
        self._failures = 0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def _pause(self) -> float:
        return min(PAUSE_SECONDS * (1 << max(0, self._failures - 1)), MOST_PAUSE_SECONDS)

    async def find(self, kid: str | None) -> jwt.PyJWK | None:
        """The key with an id; None if the issuer does not publish it.

        Raises RequestError("unavailable") if the issuer was never reached, or not for STALE_SECONDS.
        """
        age = self._clock() - self._fetched
        is_usable = kid in self._keys and age <= STALE_SECONDS
        if not is_usable or age > FRESH_SECONDS:
            is_renewing = self._renewing is not None and not self._renewing.done()
            if not is_renewing and self._clock() - self._tried >= self._pause:
                self._tried = self._clock()
                self._renewing = asyncio.create_task(self._renew())
            if not is_usable and self._renewing is not None:
                await asyncio.wait({self._renewing}, timeout=FETCH_SECONDS)  # all tokens share one fetch
        if self._clock() - self._fetched > STALE_SECONDS:
            raise RequestError(
                "unavailable", "The token issuer cannot be reached. Try again later.", retry_after=self._pause
            )
        return self._keys.get(kid)

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                url = self._settings.keys_url
                if not url:
                    metadata = await self._fetch(self._settings.issuer.rstrip("/") + DISCOVERY)
                    if metadata.get("issuer") != self._settings.issuer:
                        raise ValueError("its metadata names another issuer")
                    url = str(metadata.get("jwks_uri") or "")
                    if fault := self._settings.model_copy(update={"keys_url": url or "missing"}).fault():
                        raise ValueError(fault)
                keys = read_jwks(await self._fetch(url))
        except (OSError, ValueError, TypeError, RecursionError) as error:  # TimeoutError is an OSError
            self._failures = min(self._failures + 1, 16)
            log.warning("the token issuer's keys cannot be fetched: %s", str(error) or type(error).__name__)
        else:
            self._keys, self._fetched, self._failures = keys, self._clock(), 0


def read_jwks(document: Mapping[str, Any]) -> dict[str | None, jwt.PyJWK]:
    """The signing keys of a JWKS by id, without keys of other kinds.

    A single key is also stored under None, for tokens without a key id.
    """
    keys: dict[str | None, jwt.PyJWK] = {}
    for each in document.get("keys") or ():
        if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(each)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            keys[key.key_id] = key
    if not keys:
        raise ValueError("it publishes no signing key")
    if len(keys) == 1:
        keys[None] = next(iter(keys.values()))
    return keys


class Issuer:
    """Authenticates by the tokens of one issuer."""

    def __init__(
        self, settings: IssuerSettings, *, fetch: Fetch = fetch_json, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._keys = IssuerKeys(settings, fetch, clock)

    @staticmethod
    def may_have_made(presented: str) -> bool:
        """Whether a credential has the form of a JWT, which API keys do not have."""
        return presented.count(".") == 2 and presented.startswith("ey")

    async def find(self, token: str) -> Principal:
        """The principal of a token. Raises RequestError("unauthorized") with the reason if it is invalid."""
        if len(token) > MAX_TOKEN:
            raise _refusal("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _refusal("it cannot be read") from None
        algorithm: object = header.get("alg")  # any JSON value: nothing has been verified yet
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _refusal("it is not signed with a published key")
        key = await self._keys.find(header.get("kid"))
        if key is None:
            raise _refusal("its issuer publishes no such key")
        claims: Mapping[str, Any] = self._claims(token, key)
        tenant = claims.get(self._settings.tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            raise _refusal(f"it names no tenant in {self._settings.tenant_claim}")
        subject = claims.get("sub")
        for claim, name in ((self._settings.tenant_claim, tenant), ("sub", "" if subject is None else subject)):
            # It is stored and logged: no control or format characters, lone surrogates or unusual spaces.
            if not isinstance(name, str) or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
                raise _refusal(f"its {claim} must be a string of at most {MAX_NAME} printable characters")
        expires = claims["exp"]
        if not isinstance(expires, int | float) or isinstance(expires, bool) or not math.isfinite(expires):
            raise _refusal("its exp must be a number of seconds")
        if expires > time.time() + MAX_LIFETIME_SECONDS:
            raise _refusal(f"its exp is more than {MAX_LIFETIME_SECONDS / 86400:.0f} days ahead")
        # A space-separated string (RFC 8693, 4.2) or a list of strings.
        granted, prefix = claims.get(self._settings.scope_claim), self._settings.scope_prefix
        entries = granted.split() if isinstance(granted, str) else granted if isinstance(granted, list) else []
        names = {str(each)[len(prefix) :] for each in entries if str(each).startswith(prefix)}
        quota = Quota()
        if (limits := claims.get(self._settings.limits_claim)) is not None:
            # Invalid limits refuse the token: dropping them would lift them.
            try:
                quota = msgspec.convert(limits, Quota)
            except msgspec.ValidationError:
                raise _refusal("its limits cannot be read") from None
            if min(msgspec.structs.astuple(quota)) < 0:
                raise _refusal("its limits cannot be read")
        return Principal(
            tenant=tenant,
            name=subject or "",
            scopes=frozenset(scope for scope in SCOPES if scope in names),
            quota=quota,
            expires=float(expires),
            claims=dict(claims),
        )

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, object]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise _refusal("it has expired") from None
        except jwt.InvalidAudienceError:
            raise _refusal("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _refusal("it is another issuer's") from None
        except jwt.ImmatureSignatureError:
            raise _refusal("it is not valid yet") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refusal(f"it lacks {error.claim}") from None
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
            raise _refusal("its signature is invalid") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise _refusal("its claims cannot be read") from None


def _refusal(why: str) -> RequestError:
    return RequestError("unauthorized", f"The token was rejected: {why}.")
