"""Where an upstream is and how it is spoken to: `http://host:8000`, or `vllm+http://host:8000` to force a dialect."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import msgspec

WORKER = "worker"
"""Stands in front of the URL of an `agent-server worker`, which is spoken to in the engine protocol itself."""
DIALECTS = ("vllm", "vllm-tokens", "sglang", "llamacpp", "openai", WORKER)
"""The names that may stand in front of the URL; agent_server.engines.upstream.dialects has a module for each other."""


class Address(msgspec.Struct, frozen=True):
    """url: without a path's trailing slash. dialect: None asks the server. key: sent as a bearer token."""

    url: str
    dialect: str | None = None
    key: str = ""


def parse_address(text: str, key: str = "") -> Address:
    """Raises ValueError with one sentence. A key in the URL (`http://:KEY@host`) goes before `key`."""
    scheme, found, rest = text.strip().partition("://")
    dialect, _, plain = scheme.rpartition("+")
    if not found or plain not in ("http", "https") or not rest:
        raise ValueError(f"{text!r} is no upstream engine: give a URL like http://host:8000 or vllm+http://host:8000.")
    if dialect and dialect not in DIALECTS:
        raise ValueError(f"{dialect!r} is no dialect of an upstream; there are {', '.join(DIALECTS)}.")
    parts = urlsplit(f"{plain}://{rest}")
    if not parts.hostname:
        raise ValueError(f"{text!r} names no host.")
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(urlunsplit((plain, host, path, "", "")), dialect or None, parts.password or key)
