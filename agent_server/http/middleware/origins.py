"""Protection against web pages that use the server without their visitor's knowledge.

A browser lets any page send requests to any address, so a local server without keys is exposed to every page that is
visited. Three headers identify such requests, and each is checked before any route runs:

- `Host`: a page whose name resolves to this machine (DNS rebinding) sends its own name. Accepted are localhost,
  addresses (no name, so nothing was rebound), the bound name and the allowed hosts; in a container also the names that
  containers use for each other, none of which can be registered.
- `Origin` and `Sec-Fetch-Site`: set by browsers, out of reach for pages. The server's own pages and those of the CORS
  origins are allowed.
- `Content-Type`: without a CORS preflight, a foreign page can send three types, none of which is JSON. Only recordings
  are accepted as forms: they change nothing, and a foreign page cannot read the answer.

Clients other than browsers send neither Origin nor Sec-Fetch-Site and are not affected.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.http.middleware.context import first_headers
from agent_server.http.middleware.errors import error_response, refuse_websocket, route_path
from agent_server.media.fetching import is_address

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PROBES = frozenset({"/health", "/ready"})
"""Load balancers request these under arbitrary names; they reveal nothing about users."""
SIMPLE_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Content types that a page may send without a preflight (Fetch, "CORS-safelisted request-header")."""
FORMS = frozenset({"/v1/audio/transcriptions", "/audio/transcriptions", "/copilotkit/transcribe"})
"""The routes that read only multipart/form-data."""
OWN_SITES = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of the server's own pages and of the address bar (Fetch Metadata, section 2.4)."""
CONTAINER_NAMES = ("*.docker.internal", "*.containers.internal", "*.svc.cluster.local")
"""Host and service names of Docker, Podman and Kubernetes; names below these cannot be registered."""
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
"""Files that Docker, Podman and Kubernetes create in every container."""
MAX_ADDRESS_LENGTH = 128
"""Characters of the longest IPv6 address, including the name of its network interface."""


class BrowserPolicy:
    """Which Host names are accepted, and which pages may use the server.

    hosts: accepted names besides localhost and addresses; "*.example.com" accepts every name below it, "*" any name;
    None disables the check. origins: origins of foreign pages that are allowed; "*" allows all. pages: False for a
    server that no page uses; every request with an Origin is then refused, even if it equals Host. single_labels:
    accept names without a dot, as services of a compose file have.
    """

    def __init__(
        self,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] = (),
        *,
        pages: bool = True,
        single_labels: bool = False,
    ) -> None:
        self._single_labels = single_labels
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)
        self._pages = pages

    def refusal(self, scope: Scope, headers: Mapping[bytes, bytes] | None = None) -> RequestError | None:
        """The error for a request that is not allowed; None if it is. headers: its `first_headers`, if already read."""
        headers = first_headers(scope) if headers is None else headers
        if len(headers) < len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return RequestError("invalid_request", "The request has more than one Host header (RFC 9112, 3.2).")
        if not self._is_allowed_host(_text(headers, b"host")) and route_path(scope) not in PROBES:
            message = "The name in the Host header is not allowed. Allow it with --allowed-host NAME."
            return RequestError("forbidden", message)
        if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
            return None
        if self._is_foreign(headers):
            message = "The request comes from a web page of another origin. Allow it with --cors-origin ORIGIN."
            return RequestError("forbidden", message)
        if scope["type"] == "http" and headers.get(b"content-type") != b"application/json":
            # A page may send bodies of these types without a preflight; a form is left to the routes that read forms.
            empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
            kind = (_text(headers, b"content-type") or "").partition(";")[0].strip().lower()
            is_read = kind == "multipart/form-data" and route_path(scope) in FORMS
            if not empty and kind in SIMPLE_TYPES and not is_read:
                message = "Send the body as JSON, with Content-Type: application/json."
                return RequestError("unsupported_media_type", message)
        return None

    def _is_allowed_host(self, host: str | None) -> bool:
        if self._hosts is None or "*" in self._hosts or host is None:
            return True
        host = host.lower()
        # Without the port, the brackets and the final dot.
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        if len(name) <= MAX_ADDRESS_LENGTH and is_address(name):
            return True
        if self._single_labels and name and "." not in name:
            return True
        labels = name.split(".")
        parents = {"*." + ".".join(labels[start:]) for start in range(1, len(labels))}
        return host in self._hosts or name in self._hosts or not self._hosts.isdisjoint(parents)

    def _is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        origin, site = _text(headers, b"origin"), _text(headers, b"sec-fetch-site")
        if origin is not None and ("*" in self._origins or origin in self._origins):
            return False
        if not self._pages:
            return origin is not None or site is not None
        if site in OWN_SITES:
            return False
        if origin is None:
            return site is not None
        try:
            own = urlsplit(origin).netloc.lower()  # "" for `null`
        except ValueError:
            return True
        return not own or (own != (_text(headers, b"host") or "").lower() and own not in (self._hosts or ()))


def server_names(host: str) -> set[str]:
    """The names of a server that is bound to `host`: that one, and the machine's own if it is reachable from others."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return {"localhost"}
    machine = socket.gethostname().lower()
    return {host.lower(), machine, f"{machine}.local"}


def in_container() -> bool:
    """Whether this process runs in a container of Docker, Podman or Kubernetes."""
    return any(Path(mark).exists() for mark in CONTAINER_MARKS)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


class BrowserGuard:
    """Refuses requests that the policy does not allow, before authentication and routing."""

    def __init__(self, app: ASGIApp, policy: BrowserPolicy) -> None:
        self.app = app
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.policy.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(scope, refused)(scope, receive, send)
        else:
            await refuse_websocket(scope, receive, send, refused)
