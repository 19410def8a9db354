"""A salt for each tenant, so that tenants do not share an upstream's prefix cache."""

from __future__ import annotations

import hashlib
import secrets

_SECRET = secrets.token_bytes(32)


def cache_salt(tenant: str) -> str | None:
    """The tenant's salt: the same for the life of this process, and unpredictable. None without a tenant.

    A salt that could be guessed would let a client measure whether another tenant has sent a prompt."""
    if not tenant:
        return None
    return hashlib.blake2b(tenant.encode(), key=_SECRET, digest_size=32).hexdigest()
