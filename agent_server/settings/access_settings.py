"""Who may use the server, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from agent_server.settings.section import Keys, Secrets, Section


class AccessSettings(Section):
    """Keys of clients and operators, and the keys that encrypt."""

    title: ClassVar[str] = "Who may ask"

    api_keys: Keys = ()
    """`key` or `tenant:key`; without any, everyone who can connect may use the server."""
    keys_file: Path | None = None
    """File with hashed, named and expiring keys, as `agent-server keys new` writes it; changes take effect at once."""
    operator_keys: Keys = ()
    """Keys for the paths under /operator/; without any, these paths are closed."""
    user_header: str = ""
    """Header in which an application with a key names its user, such as `X-User-Id`; data of a user, such as access
    tokens of MCP servers, is separated by that name. Empty: the user is the key or the token's subject."""
    encryption_keys: Secrets = ()
    """base64 of 32 bytes each; the first one encrypts hidden reasoning and the access tokens of MCP servers, all of
    them decrypt, so that keys can be rotated."""


class IssuerSettings(Section):
    """An OpenID Connect issuer and how its tokens are read."""

    title: ClassVar[str] = "Who may ask"
    prefix: ClassVar[str] = "oidc_"

    issuer: str = ""
    """URL of an OpenID Connect issuer whose tokens (JWT) are accepted as keys."""
    audience: str = ""
    """The audience that a token's `aud` must contain."""
    keys_url: str = ""
    """URL of the issuer's keys (JWKS); empty to ask the issuer for it (`/.well-known/openid-configuration`)."""
    leeway: float = Field(30, ge=0)
    """Seconds by which the issuer's clock may differ."""
    tenant_claim: str = "tenant"
    """The claim that names a token's tenant; `sub` makes every user a tenant."""
    scope_claim: str = "scope"
    """The claim with a token's scopes (`use`, `operate`, `metrics`): a list, or a string with spaces between them."""
    scope_prefix: str = ""
    """Prefix of this server's scopes in that claim, such as `agent-server:`."""
    limits_claim: str = "limits"
    """The claim with a token's limits, an object with the same names as in the keys file."""

    def fault(self) -> str:
        """Return why these settings cannot be used, or ""."""
        if not self.audience:
            return "A token issuer needs an audience: set AGENT_SERVER_OIDC_AUDIENCE."
        for url in filter(None, (self.issuer, self.keys_url)):
            parts = urlsplit(url)
            local = parts.hostname in ("localhost", "127.0.0.1", "::1")
            if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
                return f"{url} must be an https:// URL, since its server decides who may use this one."
        return ""


class TenantLimits(Section):
    """Limits of one tenant in addition to those of its keys; 0 sets no limit."""

    title: ClassVar[str] = "Limits"
    prefix: ClassVar[str] = "tenant_"

    requests_per_minute: int = Field(0, ge=0)
    """Requests of one tenant per minute, in addition to the limits of its keys; 0 sets no limit. Shared through
    `redis_url`."""
    tokens_per_minute: int = Field(0, ge=0)
    """Tokens of one tenant's prompts and answers per minute; when they are used up, the next run is refused."""
    context: int = Field(0, ge=0)
    """The most tokens of a prompt and its answer together, below the model's own context; 0 sets no limit."""
    storage_bytes: int = Field(0, ge=0)
    """Bytes of messages (including removed ones), responses and saved runs that one tenant may store; above it, runs
    that store something are refused. 0 sets no limit."""
