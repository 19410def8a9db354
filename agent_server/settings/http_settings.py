"""Where the server listens, what it serves there beside the wires, and the limits on connections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from agent_server.settings.section import Names, Option, Section


class ListenAddress(NamedTuple):
    """Where a server listens: a TCP address, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""


def read_address(text: str) -> ListenAddress:
    """`host:port`, `[::1]:8000` or `unix:/path`. Raises ValueError with a sentence."""
    if text.startswith("unix:"):
        if path := text.removeprefix("unix:"):
            return ListenAddress(path=path)
    else:
        host, colon, port = text.rpartition(":")
        if colon and host and port.isdecimal() and int(port) <= 65535 and (":" not in host or host.startswith("[")):
            return ListenAddress(host.strip("[]"), int(port))
    raise ValueError(f"{text!r} is not an address. Use host:port, [::1]:8000 or unix:/path.")


class ListenSettings(Section):
    """Where to listen."""

    title: ClassVar[str] = "Where"

    host: str = "127.0.0.1"
    """Address to listen on; with the default only programs on this machine can connect."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    listen: Names = ()
    """Addresses to listen on in place of host and port: `host:port`, `[::1]:8000` or `unix:/path`. A Unix socket can
    be opened by its owner and group."""
    root_path: str = ""
    """The path under which a reverse proxy serves this server, such as `/ai`, whether or not it removes it."""

    public_url: str = ""
    """URL under which browsers reach this server, such as `https://ai.example.com`: users come back to it from signing
    in to MCP servers. Empty: `http://localhost` with the port."""

    @field_validator("public_url")
    @classmethod
    def _url(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment):
            raise ValueError(f"{url!r} is not the URL of a server. Use one such as https://ai.example.com.")
        return url.rstrip("/")

    @field_validator("listen")
    @classmethod
    def _addresses(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        for address in listen:
            read_address(address)
        return listen

    @field_validator("root_path")
    @classmethod
    def _prefix(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise ValueError("The root path must begin with a slash.")
        return path.rstrip("/")

    @property
    def browser_url(self) -> str:
        """Under which browsers reach this server."""
        port = next((address.port for address in self.addresses if not address.path), self.port)
        return self.public_url or f"http://localhost:{port}{self.root_path}"

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """Where to listen."""
        return tuple(map(read_address, self.listen)) or (ListenAddress(self.host, self.port),)


class BrowserSettings(Section):
    """Which pages may send requests, and under which names the server answers."""

    title: ClassVar[str] = "Who may ask"

    cors_origins: Names = ()
    """Origins whose web pages may send requests, over HTTP and WebSockets; pages of other origins are refused."""
    allowed_hosts: Names = ()
    """Names in the Host header that are served besides localhost, addresses and the machine's own name, such as the
    public name of a reverse proxy; `*.example.com` and `*` are understood. With API keys and none named: all."""
    container_names: bool | None = None
    """Serve also the names that containers have for each other: those without a dot, such as a compose service's, and
    below `docker.internal`, `containers.internal` and `svc.cluster.local`. None: where the server runs in one."""
    cors_credentials: bool = False
    """Let pages of `cors_origins` send cookies and HTTP authentication (`credentials: "include"`)."""


class HttpSettings(Section):
    """Bodies of requests and streams of answers."""

    title: ClassVar[str] = "Limits"

    max_body: int = Field(4 * 2**20, gt=0)
    """Bytes of a request body; a longer one is refused while it is being read."""
    keep_alive: float = Field(15, gt=0)
    """Seconds of silence after which a comment is sent, so that proxies keep the connection open."""
    drain: float = Field(30, ge=0)
    """Seconds that running runs get to end after SIGTERM; new ones are refused at once."""
    reasoning_content: bool = True
    """Also send reasoning under `reasoning_content` on the OpenAI wire."""
    strict_fields: bool = False
    """Refuse requests with fields that this server does not know; else these are ignored, with an `X-Warning` header
    and a count for each name in `agent_server:ignored_fields_total`."""


class ConnectionLimits(Section):
    """Limits on connections. head: a request's URL and headers."""

    title: ClassVar[str] = "Limits"

    connections: Annotated[int, Option("max_connections")] = Field(8192, gt=0)
    """Connections at once. When all are taken, only addresses with less than an equal share get another one. One of
    several tenants may have as many as are free, so half; a sixteenth is for operators and probes of health."""
    head_bytes: Annotated[int, Option("max_header_bytes")] = Field(32 * 2**10, ge=1024)
    """Bytes of a request's URL and headers together; more is refused with 431 while they are being read."""
    head_seconds: Annotated[float, Option("header_timeout")] = Field(10, gt=0)
    """Seconds from a connection to the end of its first request's headers, and from the first byte of a later one."""
    body_seconds: Annotated[float, Option("body_timeout")] = Field(60, gt=0)
    """Seconds from the end of the headers to the end of the body."""
    send_seconds: Annotated[float, Option("send_timeout")] = Field(60, gt=0)
    """Seconds in which a client must take something of an answer that waits for it; else it is closed."""


class WatchSettings(Section):
    """What the server tells about itself."""

    title: ClassVar[str] = "Watching it"

    metrics: bool = True
    """Serve Prometheus text at /metrics."""
    demo: bool = True
    """Serve the demonstration page at / and its agents."""
    log_format: Literal["text", "json"] = "text"
    """`json` logs an object a line with the ids of the request, trace, tenant, key, run and thread."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are logged; bodies, headers and prompts are logged at no level."""
    audit_log: Path | None = None
    """File to which a JSON line is added for everything that is approved, edited, deleted or stopped."""
