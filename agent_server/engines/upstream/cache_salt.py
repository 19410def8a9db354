"""A salt for each tenant, so that tenants do not share an upstream's prefix cache."""

from __future__ import annotations

import hashlib
import secrets

_SECRET = secrets.token_bytes(32)


def cache_salt(tenant: str, own: str = "") -> str | None:
    """The tenant's salt: the same for the life of this process, and unpredictable. None without a tenant. own: a
    request's salt, which divides the tenant's.

    A salt that could be guessed would let a client measure whether another tenant has sent a prompt."""
    if not tenant and not own:
        return None
    named = f"{tenant}\0{own}" if own else tenant
    return hashlib.blake2b(named.encode(), key=_SECRET, digest_size=32).hexdigest()
