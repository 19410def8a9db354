"""Authentication and authorization: static keys, a keys file, tokens of an issuer, scopes and quotas. Deny by
default."""

from agent_server.http.auth.admission import (
    AuthMiddleware,
    admit,
    is_public,
    needed_scope,
    presented_key,
    refused_answer,
)
from agent_server.http.auth.authority import Authority, configured_authority
from agent_server.http.auth.keys_file import Keys
from agent_server.http.auth.principal import ANYONE, SCOPES, Principal, Quota, principal_of
from agent_server.http.auth.quotas import Quotas, storage_url

__all__ = [
    "ANYONE", "SCOPES", "AuthMiddleware", "Authority", "Keys", "Principal", "Quota", "Quotas", "admit",
    "configured_authority", "is_public", "needed_scope", "presented_key", "principal_of", "refused_answer",
    "storage_url",
]  # fmt: skip
