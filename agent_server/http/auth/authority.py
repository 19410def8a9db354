"""The sources of credentials that a server accepts, consulted in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from adapters.errors import RequestError
from agent_server.http.auth.keys_file import Keys, KeysFile, KeysFileError
from agent_server.http.auth.principal import ANYONE, OPERATE_AND_METRICS, Access, Principal
from agent_server.http.auth.token_issuer import Issuer
from agent_server.settings import Settings

SEVERAL = 2


class KeySource(Protocol):
    """A source of keys. It is consulted for every request, so `find` must not block."""

    @property
    def tenants(self) -> set[str]: ...

    def find(self, presented: str) -> Principal | None: ...


class Authority:
    """Authenticates requests.

    keys, operators: from the settings. Without keys, a keys file or an issuer, everybody may use the server, except for
    the operators' paths. user_header: the header in which an application with a key names its user.
    """

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
        """Whether there may be more than one tenant."""
        self.may_revoke = file is not None or issuer is not None
        """Whether a valid key may become invalid while the server runs."""

    @property
    def tenants(self) -> int:
        """The number of known tenants; with a keys file or an issuer, which may add more, at least SEVERAL."""
        count = len({tenant for source in self._sources for tenant in source.tenants}) or 1
        return count if self.file is None and self._issuer is None else max(count, SEVERAL)

    async def admit(self, presented: str | None, needed: Access) -> Principal:
        """Return the principal of a credential.

        Raises RequestError("unauthorized") if it is invalid, and RequestError("forbidden") if it lacks the access.
        """
        if needed == "operate" and not self._operated:
            raise RequestError("forbidden", "This server has no operator keys. Set AGENT_SERVER_OPERATOR_KEYS.")
        presented = presented or ""
        principal: Principal | None = ANYONE if self._open else None
        if presented and self._issuer is not None and self._issuer.may_have_made(presented):
            principal = await self._issuer.find(presented)
        elif presented:
            principals = [each for source in self._sources if (each := source.find(presented)) is not None]
            principal = principals[0] if principals else principal
        if principal is None or (principal is ANYONE and needed not in principal.scopes):
            whose = "an operator's key" if needed == "operate" else "an API key"
            message = f"This path requires {whose}. Send Authorization: Bearer KEY."
            raise RequestError("unauthorized", message)
        if needed not in principal.scopes:
            raise RequestError("forbidden", f"This path requires a key with the scope {needed!r}.")
        return principal

    def has_lapsed(self, presented: str, principal: Principal, *, expires: bool) -> bool:
        """Whether an admitted key has since been revoked or changed or, with `expires`, has expired.

        Tokens cannot be revoked.
        """
        if principal.expires is not None and principal.expires <= self._clock():
            return expires
        if self._issuer is not None and self._issuer.may_have_made(presented):
            return False
        current = [each for source in self._sources if (each := source.find(presented)) is not None]
        return not current or current[0].tenant != principal.tenant or not principal.scopes & current[0].scopes


def configured_authority(settings: Settings) -> Authority:
    """Build the authority from the settings. Raises ValueError, also for a keys file that cannot be read: the server
    must not start open instead."""
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
            f"The keys file {settings.access.keys_file} cannot be used: {error}. Create one with agent-server keys new."
        ) from error
    return file


def issuer(settings: Settings) -> Issuer | None:
    if not settings.issuer.issuer:
        return None
    if fault := settings.issuer.fault():
        raise ValueError(fault)
    return Issuer(settings.issuer)
