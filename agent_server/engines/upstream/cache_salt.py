"""Prefix caches that tenants do not share: a salt that only this server can make."""

from __future__ import annotations

import hashlib
import secrets

_SECRET = secrets.token_bytes(32)


def cache_salt(tenant: str) -> str | None:
    """The same for a tenant as long as this process lives, and not to be guessed; None for no tenant."""
    if not tenant:
        return None
    return hashlib.blake2b(tenant.encode(), key=_SECRET, digest_size=32).hexdigest()
