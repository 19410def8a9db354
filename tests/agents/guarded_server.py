"""An MCP server that takes bearer tokens only, with its authorization server: `python guarded_server.py PORT LOG`.

Client "gateway" with the secret "s3cret" gets a token. LOG gets a line for each request for a token.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from urllib.parse import parse_qs

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse

PORT, LOG = int(sys.argv[1]), Path(sys.argv[2])
ORIGIN = f"http://127.0.0.1:{PORT}"


class Tokens:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="gateway", scopes=["tools"]) if token == "good" else None


server = MCPServer(
    "guarded",
    token_verifier=Tokens(),
    auth=AuthSettings(issuer_url=ORIGIN, resource_server_url=f"{ORIGIN}/mcp", required_scopes=["tools"]),
)


@server.tool()
def secret() -> str:
    """What only clients with a token get."""
    return "42"


@server.custom_route("/.well-known/oauth-authorization-server", methods=["GET"])
async def metadata(_: Request) -> JSONResponse:
    return JSONResponse(
        {
            "issuer": ORIGIN,
            "authorization_endpoint": f"{ORIGIN}/authorize",
            "token_endpoint": f"{ORIGIN}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
    )


def _note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(line)


@server.custom_route("/token", methods=["POST"])
async def token(request: Request) -> JSONResponse:
    form = parse_qs((await request.body()).decode())
    _note(f"{form.get('grant_type')} {request.headers.get('x-tenant')}\n")
    expected = "Basic " + base64.b64encode(b"gateway:s3cret").decode()
    if request.headers.get("authorization") != expected or form["grant_type"] != ["client_credentials"]:
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    return JSONResponse({"access_token": "good", "token_type": "Bearer", "expires_in": 3600, "scope": "tools"})


if __name__ == "__main__":
    server.run(transport="streamable-http", host="127.0.0.1", port=PORT)
