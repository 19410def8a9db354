"""Keys that the settings give in plain text, `key` or `tenant:key`."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from agent_server.http.auth.principal import USE_AND_METRICS, Access, Principal


class Keys:
    """API keys, each with its tenant, all with the same scopes."""

    def __init__(self, keys: Iterable[str], scopes: frozenset[Access] = USE_AND_METRICS) -> None:
        self._known = [self._split(key, scopes) for key in keys if key]

    @staticmethod
    def _split(key: str, scopes: frozenset[Access]) -> tuple[Principal, bytes]:
        tenant, _, secret = key.rpartition(":")
        return Principal(tenant=tenant, scopes=scopes), secret.encode()

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def tenants(self) -> set[str]:
        return {principal.tenant for principal, _ in self._known}

    def find(self, presented: str) -> Principal | None:
        """Whose key it is; None if it is unknown. Compares in constant time, all keys always."""
        candidate = presented.encode()
        found = [principal for principal, secret in self._known if hmac.compare_digest(secret, candidate)]
        return found[0] if found else None
