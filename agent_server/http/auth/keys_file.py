"""The keys file: hashed, named, expiring keys, reloaded when the file changes.

It is TOML with a table for each key, which `agent-server keys new` writes and people may edit:

    [[keys]]
    name = "ci"
    hash = "sha256:9f86d0..."
    tenant = "acme"
    scopes = ["use", "metrics"]
    expires = 2027-01-31T00:00:00Z
    requests_per_minute = 60

A secret has 256 random bits, so one round of SHA-256 is enough: it cannot be guessed, and the timing of a look-up by
hash reveals nothing about other hashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from agent_server.http.auth.principal import SCOPES, USE_AND_METRICS, Access, Principal, Quota

log = logging.getLogger("agent_server.auth")
LOOK_SECONDS = 1.0
HASH = re.compile(r"sha256:[0-9a-f]{64}")
QUOTA = Quota.__struct_fields__
Identity = tuple[int, int, int]


class KeyEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One key of the file. expires: with a time zone; None if the key does not expire."""

    name: str
    hash: str
    tenant: str = ""
    scopes: tuple[Access, ...] = ("use",)
    expires: datetime | None = None
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    runs: int = 0
    max_tokens: int = 0
    context: int = 0

    @property
    def principal(self) -> Principal:
        quota = Quota(**{name: getattr(self, name) for name in QUOTA})
        expires = None if self.expires is None else self.expires.timestamp()
        scopes = frozenset(self.scopes)
        return Principal(tenant=self.tenant, name=self.name, scopes=scopes, quota=quota, expires=expires)


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


class KeysFileError(ValueError):
    """The keys file is invalid. The message says where and why, without quoting a hash."""


def digest(secret: str) -> str:
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def parse_keys(text: str) -> list[KeyEntry]:
    """Parse the contents of a keys file. Raises KeysFileError."""
    try:
        entries = msgspec.convert(tomllib.loads(text), _Document).keys
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise KeysFileError(str(error)) from None
    for number, entry in enumerate(entries, 1):
        fault = ""
        if not entry.name.strip() or not entry.name.isprintable():
            fault = "a key needs a name"
        elif not HASH.fullmatch(entry.hash):
            fault = 'hash must be "sha256:" and 64 hexadecimal digits, as agent-server keys new writes it'
        elif not entry.scopes:
            fault = "scopes must have at least one of " + ", ".join(sorted(SCOPES))
        elif entry.expires is not None and entry.expires.tzinfo is None:
            fault = "expires needs a time zone, as in 2027-01-31T00:00:00Z"
        elif any(getattr(entry, name) < 0 for name in QUOTA):
            fault = "a limit may not be negative; 0 sets none"
        if fault:
            raise KeysFileError(f"key {number} ({entry.name or 'no name'}): {fault}")
    for field in ("name", "hash"):
        values = [getattr(entry, field) for entry in entries]
        if len(set(values)) < len(values):
            raise KeysFileError(f"two keys have the same {field}")
    return entries


class KeysFile:
    """The keys of a watched file. Changes are loaded within LOOK_SECONDS; if the file becomes invalid, the previous
    keys stay valid and an error is logged."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._keys: dict[str, Principal] = {}
        self._loaded_identity: Identity | None = None

    def load(self) -> None:
        """Read the file. Raises KeysFileError if it is invalid; the previous keys then stay."""
        self._loaded_identity = self._identity()
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise KeysFileError(getattr(error, "strerror", None) or "it is not UTF-8") from None
        self._keys = {entry.hash: entry.principal for entry in parse_keys(text)}

    def _identity(self) -> Identity | None:
        with contextlib.suppress(OSError):
            status = self._path.stat()
            return status.st_ino, status.st_size, status.st_mtime_ns
        return None

    def refresh(self) -> bool:
        """Reload the file if it has changed. Returns whether new keys were loaded."""
        if self._identity() == self._loaded_identity:
            return False
        try:
            self.load()
        except KeysFileError as error:
            log.error("the keys file %s cannot be used (%s); the previous keys stay valid", self._path.name, error)
            return False
        log.info("reloaded the keys file %s: %d keys", self._path.name, len(self._keys))
        return True

    async def watch(self) -> None:
        """Reload the file when it changes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.refresh)

    @property
    def tenants(self) -> set[str]:
        return {principal.tenant for principal in self._keys.values()}

    def find(self, presented: str) -> Principal | None:
        """The principal of a key; None if it is unknown or has expired."""
        principal = self._keys.get(digest(presented))
        if principal is None or (principal.expires is not None and principal.expires <= self._clock()):
            return None
        return principal


# writing


def new_secret() -> str:
    return "as_" + secrets.token_urlsafe(32)


def add_key(path: Path, entry: KeyEntry) -> None:
    """Append a key. A missing file is created, readable by its owner only. Raises KeysFileError."""
    text = path.read_text("utf-8") if path.exists() else ""
    joined = text + ("\n" if text.strip() else "") + _table(entry)
    parse_keys(joined)
    _write(path, joined)


def remove_key(path: Path, name: str) -> None:
    """Remove a key. Comments in the file are lost. Raises KeysFileError."""
    entries = parse_keys(path.read_text("utf-8")) if path.exists() else []
    remaining = [entry for entry in entries if entry.name != name]
    if len(remaining) == len(entries):
        raise KeysFileError(f"there is no key named {name}")
    _write(path, "\n".join(map(_table, remaining)))


def _table(entry: KeyEntry) -> str:
    lines = ["[[keys]]\n"]
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if isinstance(value, datetime):
            lines.append(f"{name} = {value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\n")
        elif value or name in ("name", "hash", "tenant", "scopes"):
            # TOML's strings take JSON's escapes.
            lines.append(f"{name} = {json.dumps(list(value) if isinstance(value, tuple) else value)}\n")
    return "".join(lines)


def _write(path: Path, text: str) -> None:
    """Replace the file atomically, so that a server sees either the old contents or the new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Keys:
    """API keys from the settings, each with its tenant, all with the same scopes."""

    def __init__(self, keys: Iterable[str], scopes: frozenset[Access] = USE_AND_METRICS) -> None:
        tenants_and_secrets = [key.rpartition(":")[::2] for key in keys if key]
        self._principals = [
            (Principal(tenant=tenant, scopes=scopes), secret.encode()) for tenant, secret in tenants_and_secrets
        ]

    def __bool__(self) -> bool:
        return bool(self._principals)

    @property
    def tenants(self) -> set[str]:
        return {principal.tenant for principal, _ in self._principals}

    def find(self, presented: str) -> Principal | None:
        """The principal of a key; None if it is unknown. Compares with every key in constant time."""
        candidate = presented.encode()
        matches = [principal for principal, secret in self._principals if hmac.compare_digest(secret, candidate)]
        return matches[0] if matches else None
