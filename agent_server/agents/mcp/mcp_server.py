"""An agent's declaration of an MCP server.

The client (`sessions.py`) takes a quarter of the server's start to import, so it is only loaded if an agent has an MCP
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent_server.user import NOTHING, Forward


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How this server identifies itself to a remote MCP server (OAuth 2.1, grant `client_credentials`).

    client_secret or private_key: the client's; the key is a PEM that signs assertions (RFC 7523) with `algorithm`.
    issuer: the URL of the authorization server; the secret is sent to no other, whatever the MCP server says. scope:
    space-separated; "" requests the scope that the MCP server names. auth_method: how the secret is sent.
    """

    client_id: str
    client_secret: str = ""
    issuer: str
    scope: str = ""
    auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    private_key: str = ""
    algorithm: str = "ES256"

    def __post_init__(self) -> None:
        if bool(self.client_secret) == bool(self.private_key):
            raise ValueError("client credentials have either a clientSecret or a privateKey")


class UserConsent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every user signs in at a remote MCP server's authorization server (OAuth 2.1, grant `authorization_code` with
    PKCE), and the server gets that user's token.

    client_id, client_secret: those of a client that is registered there; "" registers one, if the server allows it.
    client_metadata_url: the URL of a document that describes this client, for servers that accept it as the client's
    id. scope: space-separated; "" requests the scope that the MCP server names. issuer: the only authorization server
    that users are sent to, required with a secret; "" trusts the one that the MCP server names.
    """

    client_id: str = ""
    client_secret: str = ""
    client_metadata_url: str = ""
    scope: str = ""
    issuer: str = ""

    def __post_init__(self) -> None:
        if self.client_secret and not self.issuer:
            raise ValueError("oauth with a clientSecret needs the issuer that the secret may be sent to")


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server: `command` for stdio (the program and its arguments) or `url` for streamable HTTP.

    env: added to the few variables that the program inherits. headers: sent with every request. oauth: for a `url`:
    credentials of this server, whose access token is fetched and renewed as needed and kept in memory, or the consent
    of each user. forward: the parts of a request that are sent with its calls. only: names of the tools to offer; empty
    means all. without: names of tools that are never offered. prefix: added before the tools' names. requires_approval:
    a person is asked before any call (True), before calls of these tools, or before calls of every tool that does not
    declare itself read-only ("writes"). approvals: whether a person is asked, by tool; overrides requires_approval.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = {}
    cwd: str | None = None
    headers: dict[str, str] = {}
    oauth: ClientCredentials | UserConsent | None = None
    forward: Forward = NOTHING
    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    prefix: str = ""
    requires_approval: bool | Literal["writes"] | frozenset[str] = False
    approvals: Mapping[str, bool] = {}
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name}: give either a command or a url")
        if self.oauth is not None and not self.url:
            raise ValueError(f"MCP server {self.name}: oauth is for servers with a url; give a command its env")
        if self.forward != NOTHING and not self.url:
            raise ValueError(f"MCP server {self.name}: forward is for servers with a url; a command gets no headers")

    @property
    def per_user(self) -> bool:
        """Whether its sessions belong to one user each."""
        return isinstance(self.oauth, UserConsent) or self.forward != NOTHING

    def offers(self, tool: str) -> bool:
        """Whether the settings allow the tool."""
        return tool not in self.without and (not self.only or tool in self.only)

    def asks(self, tool: str, *, read_only: bool) -> bool:
        """Whether a call of the tool needs a person's approval. read_only: the server declares that it changes
        nothing."""
        rule = self.requires_approval
        if tool in self.approvals:
            return self.approvals[tool]
        if isinstance(rule, bool):
            return rule
        return not read_only if rule == "writes" else tool in rule
