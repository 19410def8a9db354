"""Authlib's authorization server, run with Flask: `python authlib_server.py PORT`. Whoever comes is Ann, and agrees.

Clients register themselves (RFC 7591); codes need PKCE with S256 (RFC 7636); answers name the issuer (RFC 9207); refresh
tokens are used once.
"""

from __future__ import annotations

import os
import sys
import time

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.models import ClientMixin
from authlib.oauth2.rfc7591 import ClientMetadataClaims, ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Flask, jsonify, request

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
PORT = int(sys.argv[1])
ISSUER = f"http://127.0.0.1:{PORT}"
clients: dict[str, Client] = {}
codes: dict[str, Code] = {}
tokens: list[Token] = []


class Client(ClientMixin):
    def __init__(self, info, metadata):
        self.info, self.metadata = info, metadata

    @property
    def client_id(self):
        return self.info["client_id"]

    @property
    def client_info(self):
        return self.info

    @property
    def client_metadata(self):
        return self.metadata

    def get_client_id(self):
        return self.client_id

    def get_default_redirect_uri(self):
        return self.metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope):
        return scope or "tools"

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret):
        return self.info.get("client_secret") == client_secret

    def check_endpoint_auth_method(self, method, endpoint):
        return method == self.metadata.get("token_endpoint_auth_method", "client_secret_basic")

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in self.metadata["grant_types"]


class Code:
    def __init__(self, code, request):
        payload = request.payload
        self.code, self.client_id = code, request.client.client_id
        self.redirect_uri, self.scope = payload.redirect_uri, payload.scope
        self.code_challenge = payload.data.get("code_challenge")
        self.code_challenge_method = payload.data.get("code_challenge_method")
        self.auth_time = time.time()

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope or "tools"


class Token:
    def __init__(self, token, client_id):
        self.access, self.renews = token["access_token"], token.get("refresh_token")
        self.scope, self.client_id, self.user = token.get("scope", "tools"), client_id, "ann"
        self.revoked = False

    def check_client(self, client):
        return client.client_id == self.client_id

    def get_scope(self):
        return self.scope

    def get_expires_in(self):
        return 3600

    def is_expired(self):
        return False

    def is_revoked(self):
        return self.revoked


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

    def save_authorization_code(self, code, request):
        codes[code] = Code(code, request)

    def query_authorization_code(self, code, client):
        found = codes.get(code)
        return found if found is not None and found.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code):
        del codes[authorization_code.code]

    def authenticate_user(self, authorization_code):
        return "ann"


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token):
        return next((each for each in tokens if each.renews == refresh_token and not each.revoked), None)

    def authenticate_user(self, refresh_token):
        return refresh_token.user

    def revoke_old_credential(self, refresh_token):
        refresh_token.revoked = True


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return "anyone"

    def save_client(self, client_info, client_metadata, request):
        clients[client_info["client_id"]] = client = Client(client_info, dict(client_metadata))
        return client

    def get_server_metadata(self):
        return {}


class Issuer(IssuerParameter):
    def get_issuer(self):
        return ISSUER


app = Flask(__name__)
app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
server = AuthorizationServer(
    app,
    query_client=clients.get,
    save_token=lambda token, request: tokens.append(Token(token, request.client.client_id)),
)
server.register_grant(CodeGrant, [CodeChallenge(required=True)])
server.register_grant(RefreshGrant)
server.register_endpoint(Registration(claims_classes=[ClientMetadataClaims]))
server.register_extension(Issuer())


@app.get("/.well-known/oauth-authorization-server")
def metadata():
    return jsonify(
        issuer=ISSUER, authorization_endpoint=f"{ISSUER}/authorize", token_endpoint=f"{ISSUER}/token",
        registration_endpoint=f"{ISSUER}/register", response_types_supported=["code"], scopes_supported=["tools"],
        grant_types_supported=["authorization_code", "refresh_token"], code_challenge_methods_supported=["S256"],
        token_endpoint_auth_methods_supported=["client_secret_basic", "client_secret_post", "none"],
        authorization_response_iss_parameter_supported=True,
    )  # fmt: skip


@app.get("/authorize")
def authorize():
    grant = server.get_consent_grant(end_user="ann")
    return server.create_authorization_response(grant_user="ann", grant=grant)


@app.post("/token")
def token():
    return server.create_token_response()


@app.post("/register")
def register():
    return server.create_endpoint_response(Registration.ENDPOINT_NAME)


@app.post("/introspect")
def introspect():
    found = next((each for each in tokens if each.access == request.form["token"] and not each.revoked), None)
    if found is None:
        return jsonify(active=False)
    return jsonify(active=True, client_id=found.client_id, scope=found.scope, sub=found.user)


if __name__ == "__main__":
    app.run("127.0.0.1", PORT, threaded=False)
