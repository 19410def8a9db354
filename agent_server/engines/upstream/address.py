"""The address of an upstream and its dialect: `http://host:8000`, or `vllm+http://host:8000` to force a dialect."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import msgspec

WORKER = "worker"
"""The prefix of the URL of an `agent-server worker`, which speaks the engine protocol itself."""
DIALECTS = ("vllm", "vllm-tokens", "sglang", "llamacpp", "openai", WORKER)
"""The prefixes of a URL. Each but WORKER has a module in agent_server.engines.upstream.dialects."""


class UpstreamAddress(msgspec.Struct, frozen=True):
    """url: without a slash at the end. dialect: None if the server is to be asked. key: sent as a bearer token."""

    url: str
    dialect: str | None = None
    key: str = ""


def parse_address(text: str, key: str = "") -> UpstreamAddress:
    """Raises ValueError with one sentence. A key in the URL (`http://:KEY@host`) is used instead of `key`."""
    scheme, separator, rest = text.strip().partition("://")
    dialect, _, plain = scheme.rpartition("+")
    if not separator or plain not in ("http", "https") or not rest:
        raise ValueError(f"{text!r} is no upstream engine: give a URL like http://host:8000 or vllm+http://host:8000.")
    if dialect and dialect not in DIALECTS:
        raise ValueError(f"{dialect!r} is not a dialect of an upstream engine; use one of {', '.join(DIALECTS)}.")
    parts = urlsplit(f"{plain}://{rest}")
    if not parts.hostname:
        raise ValueError(f"{text!r} names no host.")
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/").removesuffix("/v1")
    return UpstreamAddress(urlunsplit((plain, host, path, "", "")), dialect or None, parts.password or key)
