"""What keeps web pages from using the server behind their visitor's back.

A browser lets any page send requests to any address, so a server without keys on one's own machine is open to every
page that one looks at. Three things give such a request away, and each is checked before any route runs:

- `Host`: a page whose name was made to point at this machine (DNS rebinding) asks under its own name. Names that we are
  served under are localhost, addresses (no name, so nothing was rebound), the bound name and the allowed hosts; in a
  container also the names that containers have for each other, none of which can be registered.
- `Origin` and `Sec-Fetch-Site`: browsers set them, pages cannot. A page of ours, and pages of the CORS origins, may.
- `Content-Type`: a page elsewhere can send three types without asking first (a CORS preflight), and none is JSON.
  Recordings alone come as forms: nothing is changed by them, and such a page cannot read the answer.

Clients that are no browsers send neither Origin nor Sec-Fetch-Site and are not touched.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.http.middleware.context import first_headers
from agent_server.http.middleware.errors import error_response, refuse_websocket, route_path

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PROBES = frozenset({"/health", "/ready"})
"""Asked by load balancers under whatever name they have; they tell nothing about anybody."""
SIMPLE_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""What a page may send without a preflight (Fetch, "CORS-safelisted request-header")."""
FORMS = frozenset({"/v1/audio/transcriptions", "/audio/transcriptions", "/copilotkit/transcribe"})
"""The routes that read multipart/form-data, and nothing else."""
OURS = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of our own page, and of what a person typed into the address bar (Fetch Metadata, section 2.4)."""
CONTAINER_NAMES = ("*.docker.internal", "*.containers.internal", "*.svc.cluster.local")
"""How Docker, Podman and Kubernetes call hosts and services; names below these cannot be registered by anyone."""
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
"""Files that Docker, Podman and Kubernetes put into every container."""
LONGEST_ADDRESS = 128
"""Characters of an IPv6 address with the name of its network interface; what is longer is no address."""


class BrowserPolicy:
    """Which hosts the server is served under, and which pages may ask.

    hosts: names besides localhost and addresses; "*.example.com" means every name below it, "*" any at all. None: Host
    is not looked at. origins: of pages elsewhere that may ask; "*" means all of them. pages: False for a server that
    no page ever asks; then whatever shows an Origin is refused, one that equals Host included. single_labels: names
    without a dot are served, which is what the services of a compose file have.
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
        """Why this request is not taken; None where it is. headers: its `first_headers`, if they were read already."""
        headers = first_headers(scope) if headers is None else headers
        if len(headers) < len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return RequestError("invalid_request", "The request has more than one Host header (RFC 9112, 3.2).")
        if not self._served(_text(headers, b"host")) and route_path(scope) not in PROBES:
            message = "The name in the Host header is not allowed. Allow it with --allowed-host NAME."
            return RequestError("forbidden", message)
        if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
            return None
        if self._is_foreign(headers):
            message = "The request comes from a web page of another origin. Allow it with --cors-origin ORIGIN."
            return RequestError("forbidden", message)
        if scope["type"] == "http" and _is_simple(headers, form=route_path(scope) in FORMS):
            return RequestError("unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")
        return None

    def _served(self, host: str | None) -> bool:
        if self._hosts is None or "*" in self._hosts or host is None:
            return True
        host = host.lower()
        name = _name(host)
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        if self._single_labels and name and "." not in name:
            return True
        return host in self._hosts or name in self._hosts or self._is_below(name)

    def _is_below(self, name: str) -> bool:
        parts = name.split(".")
        return any("*." + ".".join(parts[start:]) in (self._hosts or ()) for start in range(1, len(parts)))

    def _is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        origin, site = _text(headers, b"origin"), _text(headers, b"sec-fetch-site")
        if origin is not None and ("*" in self._origins or origin in self._origins):
            return False
        if not self._pages:
            return origin is not None or site is not None
        if site in OURS:
            return False
        if origin is None:
            return site is not None
        own = _netloc(origin)
        return not own or (own != (_text(headers, b"host") or "").lower() and own not in (self._hosts or ()))


def server_names(host: str) -> set[str]:
    """The names that a server bound to `host` is known by: that one, and the machine's own where others reach it."""
    if host in ("127.0.0.1", "::1", "localhost"):
        return {"localhost"}
    machine = socket.gethostname().lower()
    return {host.lower(), machine, f"{machine}.local"}


def in_container() -> bool:
    """Whether this process runs in a container of Docker, Podman or Kubernetes."""
    return any(Path(mark).exists() for mark in CONTAINER_MARKS)


def _name(host: str) -> str:
    """The name of a Host header's value, without its port, brackets and final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    return _reads_as_address(name) if len(name) <= LONGEST_ADDRESS else False


@lru_cache(256)
def _reads_as_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    """Host and port of an origin; "" for `null` and what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _is_simple(headers: Mapping[bytes, bytes], *, form: bool) -> bool:
    """Whether there is a body of a type that a page may send without being asked about it. form: one is read."""
    if headers.get(b"content-type") == b"application/json":
        return False
    empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    kind = (_text(headers, b"content-type") or "").partition(";")[0].strip().lower()
    return not empty and kind in SIMPLE_TYPES and not (form and kind == "multipart/form-data")


class BrowserGuard:
    """Refuses what the policy does not allow, before any route and any look at keys."""

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
