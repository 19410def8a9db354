"""OAuth for MCP servers that act for a user: the consent link, its callback, and the tokens.

The `mcp` SDK's client discovers the authorization server, registers a client and renews tokens, but its authorization
waits for the user within one request and one process. Here it has two halves. `_perform_authorization` stores the
pending consent and ends the request with ConsentRequired, which becomes an interrupt. `Consents.finish`, on any gateway
that shares the store, exchanges the code from the user's browser for a token.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthTokenError, PKCEParameters
from mcp.client.auth.utils import extract_field_from_www_auth, validate_authorization_response_iss
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel

from agent_server.agents.mcp.limited_body import limit_body
from agent_server.agents.mcp.mcp_server import McpServer, UserConsent
from agent_server.agents.sealing import Sealer
from agent_server.certificates import ssl_context
from agent_server.observability.audit import note
from agent_server.runs.store import Store
from agent_server.user import User

logger = logging.getLogger("agent_server.mcp")
CALLBACK_PATH = "/oauth/callback"
CONSENT_SECONDS = 600.0
"""How long a consent link is valid. In the first half of this time, another request gets the same link."""
EARLY_SECONDS = 10.0
"""How long before its end a token is renewed."""
EXCHANGE_SECONDS = 30.0
SEALED_FOR = "oauth"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
Json = dict[str, Any]


class ConsentRequired(Exception):
    """The user must visit `url` before the request can be made."""

    def __init__(self, url: str) -> None:
        super().__init__("requires the user to sign in")
        self.url = url


logging.getLogger("mcp.client.auth.oauth2").addFilter(  # it logs whatever ends a flow as an error
    lambda record: record.exc_info is None or not isinstance(record.exc_info[1], ConsentRequired)
)


class ConsentRefused(Exception):
    """A consent could not be completed. The message is a sentence for the user."""


class PendingConsent(msgspec.Struct, kw_only=True):
    """A consent that waits for the user: what `finish` needs besides the code. client, metadata, resource: in wire
    form."""

    url: str
    state: str
    verifier: str
    began_at: float
    client: Json
    scope: str | None = None
    metadata: Json | None = None
    resource: Json | None = None
    protocol: str | None = None


class Grant(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is stored for one user and server. client: the client that got the tokens; in the gateway's own entry, the
    client that it registered. expires_at: seconds since the epoch; None if the server did not say."""

    tokens: Json | None = None
    expires_at: float | None = None
    client: Json | None = None
    pending: PendingConsent | None = None


class Consents:
    """The grants of all users, sealed in the store.

    redirect_uri: this server's callback as browsers reach it. servers: the configured servers by URL.
    """

    def __init__(self, store: Store, sealer: Sealer, redirect_uri: str) -> None:
        self._store = store
        self._sealer = sealer
        self.redirect_uri = redirect_uri
        self.servers: dict[str, McpServer] = {}

    async def grant(self, user: User, server: str) -> Grant:
        """Return a user's grant at the server with that URL. A grant that cannot be decrypted, because its key was
        removed, counts as none."""
        body = await self._store.grant(user.tenant, user.name, server)
        text = None if body is None else self._sealer.open(body, **_seal_context(user, server))
        try:
            return Grant() if text is None else msgspec.json.decode(text, type=Grant)
        except msgspec.MsgspecError:
            return Grant()

    async def save(self, user: User, server: str, grant: Grant) -> None:
        sealed = self._sealer.seal(msgspec.json.encode(grant).decode(), **_seal_context(user, server))
        state = None if grant.pending is None else _digest(grant.pending.state)
        await self._store.save_grant(user.tenant, user.name, server, sealed, state)

    async def pending(self, state: str) -> tuple[McpServer, User]:
        """Return the server and the user of a pending consent. Raises ConsentRefused."""
        grant_key = await self._store.grant_of_state(_digest(state))
        if grant_key is None or (server := self.servers.get(grant_key[2])) is None:
            raise ConsentRefused("This sign-in is unknown, or was completed already. Ask for a new link.")
        return server, User(tenant=grant_key[0], name=grant_key[1])

    async def finish(self, state: str, code: str, issuer: str | None, error: str | None) -> McpServer:
        """Exchange the code from the user's browser for a token. A link works only once. Raises ConsentRefused."""
        server, user = await self.pending(state)
        grant = await self.grant(user, server.url)
        pending, grant.pending = grant.pending, None
        await self.save(user, server.url, grant)  # the link is used up, whatever the outcome
        if pending is None or not secrets.compare_digest(pending.state, state):
            raise ConsentRefused("This sign-in can no longer be read. Ask for a new link.")
        if time.time() - pending.began_at > CONSENT_SECONDS:
            raise ConsentRefused("This sign-in took too long. Ask for a new link.")
        if error is not None or not code:
            note("consent.refused", tenant=user.tenant, server=server.name, user=user.name)
            raise ConsentRefused(f"The sign-in to {server.name} was not completed: {(error or 'no code')[:200]}.")
        provider = UserTokens(server, self, user)
        try:
            async with httpx2.AsyncClient(
                timeout=EXCHANGE_SECONDS, event_hooks={"response": [limit_body]}, verify=ssl_context()
            ) as http:
                await provider.exchange(pending, code, issuer, http)
        except (OAuthFlowError, OAuthTokenError, httpx2.HTTPError, ValueError) as failure:
            logger.warning("MCP server %s: a code could not be exchanged for a token: %s", server.name, failure)
            raise ConsentRefused(
                f"The authorization server of {server.name} issued no token. Ask for a new link."
            ) from failure
        note("consent.given", tenant=user.tenant, server=server.name, user=user.name)
        return server


class UserTokens(OAuthClientProvider):
    """The tokens of one user at one server, as the SDK's HTTP client uses them."""

    def __init__(self, server: McpServer, consents: Consents, user: User) -> None:
        consent = server.oauth
        assert isinstance(consent, UserConsent)
        local = urlsplit(consents.redirect_uri).hostname in LOCAL_HOSTS
        super().__init__(
            server_url=server.url,
            client_metadata=OAuthClientMetadata(
                client_name="agent-server",
                redirect_uris=[AnyUrl(consents.redirect_uri)],
                application_type="native" if local else "web",
            ),
            storage=_GrantStorage(server, consent, consents, user),
            client_metadata_url=consent.client_metadata_url or None,
        )
        self._server = server
        self._consent = consent
        self._consents = consents
        self._user = user

    async def granted(self) -> bool:
        """Whether there is a token, even one that has to be renewed."""
        return (await self._consents.grant(self._user, self._server.url)).tokens is not None

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorize a request. Unlike in the SDK's flow, requests do not wait for one another, a refused token is
        renewed before the user is asked, and tokens that another gateway or the callback has stored are used."""
        context = self.context
        async with context.lock:
            if not context.is_token_valid():
                await self._initialize()
            if not context.is_token_valid() and context.can_refresh_token():
                await self._store_renewed_token((yield await self._refresh_token()))
        sent = self._authorize(request)
        response = yield request
        if not _wants_token(response):
            return
        async with context.lock:
            await self._initialize()
            current = None if context.current_tokens is None else context.current_tokens.access_token
            if current is not None and current == sent and response.status_code == 401 and context.can_refresh_token():
                await self._store_renewed_token((yield await self._refresh_token()))
                current = None if context.current_tokens is None else context.current_tokens.access_token
        if current is not None and current != sent:
            self._authorize(request)
            response = yield request
            if not _wants_token(response):
                return
        flow = super().async_auth_flow(request)
        outgoing, is_answered = await anext(flow), True
        try:
            while True:
                if outgoing is request and is_answered:  # its refusal is known already
                    is_answered = False
                else:
                    response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return

    async def exchange(self, pending: PendingConsent, code: str, issuer: str | None, http: httpx2.AsyncClient) -> None:
        """Fetch and store the token of a consent. Raises OAuthFlowError, OAuthTokenError or HTTPError."""
        context = self.context
        context.client_info = OAuthClientInformationFull.model_validate(pending.client)
        context.client_metadata.scope = pending.scope
        context.protocol_version = pending.protocol
        if pending.metadata is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(pending.metadata)
        if pending.resource is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(pending.resource)
        validate_authorization_response_iss(issuer, context.oauth_metadata)
        request = await self._exchange_token_authorization_code(code, pending.verifier)
        await self._handle_token_response(await http.send(request))

    async def _initialize(self) -> None:
        await super()._initialize()
        grant = await self._consents.grant(self._user, self._server.url)
        self.context.token_expiry_time = None if grant.expires_at is None else grant.expires_at - EARLY_SECONDS

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self._consent.issuer
        if not issuer:
            return advertised[0]
        matching_server = next((each for each in advertised if each.rstrip("/") == issuer.rstrip("/")), None)
        if matching_server is None:
            raise OAuthFlowError(f"the server names {advertised[0]} as its authorization server, and not {issuer}")
        return matching_server

    async def _perform_authorization(self) -> httpx2.Request:
        """Store the pending consent and raise ConsentRequired."""
        context = self.context
        assert context.client_info is not None
        if (issuer := self._consent.issuer) and self._expected_issuer().rstrip("/") != issuer.rstrip("/"):
            raise OAuthFlowError(f"the server's authorization server is {self._expected_issuer()}, and not {issuer}")
        if self._consent.scope:
            context.client_metadata.scope = self._consent.scope
        grant = await self._consents.grant(self._user, self._server.url)
        client = _wire(context.client_info)
        pending = grant.pending
        if (
            pending is not None
            and time.time() - pending.began_at < CONSENT_SECONDS / 2
            and (pending.client.get("client_id"), pending.scope) == (client["client_id"], context.client_metadata.scope)
        ):
            raise ConsentRequired(pending.url)
        metadata = context.oauth_metadata
        if metadata is not None and "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise OAuthFlowError("its authorization server does not support PKCE with S256")
        base = context.get_authorization_base_url(context.server_url)
        endpoint = urljoin(base, "/authorize") if metadata is None else str(metadata.authorization_endpoint)
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        query = {
            "response_type": "code", "client_id": context.client_info.client_id,
            "redirect_uri": self._consents.redirect_uri, "state": state, "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
        }  # fmt: skip
        if context.should_include_resource_param(context.protocol_version):
            query["resource"] = context.get_resource_url()  # RFC 8707
        if scope := context.client_metadata.scope:
            query["scope"] = scope
            if "offline_access" in scope.split():  # OpenID Connect Core 1.0, section 11
                query["prompt"] = "consent"
        grant.pending = PendingConsent(
            url=f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}",
            state=state,
            verifier=pkce.code_verifier,
            began_at=time.time(),
            client=client,
            scope=scope,
            metadata=None if metadata is None else _wire(metadata),
            resource=None if (resource := context.protected_resource_metadata) is None else _wire(resource),
            protocol=context.protocol_version,
        )
        await self._consents.save(self._user, self._server.url, grant)
        raise ConsentRequired(grant.pending.url)

    def _authorize(self, request: httpx2.Request) -> str | None:
        """Set the token on a request and return it; None if there is none."""
        tokens = self.context.current_tokens
        if tokens is None:
            request.headers.pop("Authorization", None)
            return None
        self._add_auth_header(request)
        return tokens.access_token

    async def _store_renewed_token(self, response: httpx2.Response) -> None:
        """Store a renewed token, or delete one that cannot be renewed. Raises OAuthTokenError if that is unknown."""
        if response.status_code >= 500 or response.status_code == 429:
            raise OAuthTokenError(f"the token could not be renewed: HTTP {response.status_code}")
        if not await self._handle_refresh_response(response):
            grant = await self._consents.grant(self._user, self._server.url)
            grant.tokens = grant.expires_at = None
            await self._consents.save(self._user, self._server.url, grant)


class _GrantStorage:
    """The SDK's storage of a user's grant. A registered client belongs to the gateway and serves all users."""

    def __init__(self, server: McpServer, consent: UserConsent, consents: Consents, user: User) -> None:
        self._server = server
        self._consent = consent
        self._consents = consents
        self._user = user
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        grant = await self._consents.grant(self._user, self._server.url)
        return None if grant.tokens is None else OAuthToken.model_validate(grant.tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        grant = await self._consents.grant(self._user, self._server.url)
        grant.tokens = _wire(tokens)
        grant.expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._consents.save(self._user, self._server.url, grant)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        if self._consent.client_id:
            secret = self._consent.client_secret or None
            return OAuthClientInformationFull(
                client_id=self._consent.client_id,
                client_secret=secret,
                redirect_uris=[AnyUrl(self._consents.redirect_uri)],
                token_endpoint_auth_method="client_secret_basic" if secret else "none",
                issuer=self._consent.issuer or None,
            )
        grant = await self._consents.grant(_GATEWAY, self._server.url)
        if grant.client is None:
            return None
        client = OAuthClientInformationFull.model_validate(grant.client)
        # A client that was registered under another address of this server would redirect users there.
        uris = [str(uri) for uri in client.redirect_uris or ()]
        return client if not uris or self._consents.redirect_uri in uris else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        grant = await self._consents.grant(_GATEWAY, self._server.url)
        grant.client = _wire(client_info)
        await self._consents.save(_GATEWAY, self._server.url, grant)


_GATEWAY = User(name=" gateway ")
"""No user has a name that begins with a space."""


def _wants_token(response: httpx2.Response) -> bool:
    insufficient = extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401 or (response.status_code == 403 and insufficient)


def _seal_context(user: User, server: str) -> dict[str, str]:
    return {"tenant": user.tenant, "thread_id": SEALED_FOR, "message_id": f"{user.name} {server}"}


def _digest(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()


def _wire(model: BaseModel) -> Json:
    return model.model_dump(mode="json", exclude_none=True)
