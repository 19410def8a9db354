"""An MCP server whose users sign in: `python consent_server.py PORT [ISSUER]`.

Without an issuer it is its own authorization server, by the `mcp` SDK, where whoever comes is signed in at once. With
one it asks that one about tokens (RFC 7662). The tool `forget` makes all access tokens invalid, and keeps what renews
them; `forget_all` forgets that, too.
"""

from __future__ import annotations

import secrets
import sys
import time

import httpx2
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

PORT = int(sys.argv[1])
ISSUER = sys.argv[2] if len(sys.argv) > 2 else ""
ORIGIN = f"http://127.0.0.1:{PORT}"


class Provider:
    """Everything in memory, as the SDK's authorization server asks for it."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = AuthorizationCode(
            code=code, client_id=client.client_id, scopes=params.scopes or ["tools"], expires_at=time.time() + 60,
            code_challenge=params.code_challenge, redirect_uri=params.redirect_uri, resource=params.resource,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
        )  # fmt: skip
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: OAuthClientInformationFull, code: str) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[code.code]
        return self._issue(client.client_id, code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, token: str) -> RefreshToken | None:
        return self.refresh.get(token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[token.token]
        return self._issue(client.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def _issue(self, client_id: str, scopes: list[str]) -> OAuthToken:
        token, renews = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        self.access[token] = AccessToken(token=token, client_id=client_id, scopes=scopes)
        self.refresh[renews] = RefreshToken(token=renews, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=token, refresh_token=renews, expires_in=3600, scope=" ".join(scopes))


class Introspection:
    """Asks the issuer about a token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx2.AsyncClient() as http:
            said = (await http.post(f"{ISSUER}/introspect", data={"token": token})).json()
        if not said["active"]:
            return None
        return AccessToken(token=token, client_id=said["client_id"], scopes=said["scope"].split(), subject=said["sub"])


provider = Provider()
auth = AuthSettings(
    issuer_url=ISSUER or ORIGIN,
    resource_server_url=f"{ORIGIN}/mcp",
    required_scopes=["tools"],
    client_registration_options=ClientRegistrationOptions(
        enabled=not ISSUER, valid_scopes=["tools"], default_scopes=["tools"]
    ),
)
if ISSUER:
    server = MCPServer("guarded", auth=auth, token_verifier=Introspection())
else:
    server = MCPServer("guarded", auth=auth, auth_server_provider=provider)


@server.tool()
def secret() -> str:
    """What only users with a token get: whose token it is."""
    token = get_access_token()
    assert token is not None
    return f"42 for {token.subject or token.token}"


@server.tool()
def headers(ctx: Context) -> str:
    """The names of the request's headers that begin with x-."""
    request = ctx.request_context.request
    return " ".join(f"{name}={value}" for name, value in sorted(request.headers.items()) if name.startswith("x-"))


@server.tool()
def forget() -> str:
    """Make the access tokens invalid."""
    provider.access.clear()
    return "forgotten"


@server.tool()
def forget_all() -> str:
    """Make all tokens invalid."""
    provider.access.clear()
    provider.refresh.clear()
    return "forgotten"


if __name__ == "__main__":
    server.run(transport="streamable-http", host="127.0.0.1", port=PORT)
