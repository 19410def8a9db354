"""Authenticated encryption for values that a client keeps for the server, such as hidden reasoning.

AES-256-GCM. The associated data names the tenant, the thread and the message, so that a value can be decrypted only
where it was made. Layout, in base64url without padding: one version byte, 8 bytes of key id, a nonce of 12 bytes,
ciphertext with its tag. The key id is a hash of the key, so rotation needs no configuration but the order of the keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = b"\x01"
KEY_BYTES = 32
_NAME, _NONCE = 8, 12


COMPACTION_THREAD, COMPACTION_MESSAGE = "compaction", "told"
"""The thread and message ids that a compacted conversation is sealed for: it belongs to no stored thread."""


class Sealer:
    """Encrypts with the first key, decrypts with any of them.

    keys: 32 bytes each. Without any, a random key is used for this process, so values do not survive a restart.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        for key in keys:
            if len(key) != KEY_BYTES:
                raise ValueError(f"an encryption key must have {KEY_BYTES} bytes, not {len(key)}")
        all_keys = list(keys) or [os.urandom(KEY_BYTES)]
        self._keys = {_name_of(key): AESGCM(key) for key in all_keys}
        self._first = _name_of(all_keys[0])

    @classmethod
    def from_settings(cls, encoded: Sequence[str]) -> Sealer:
        """Create a sealer from keys in base64. Raises ValueError for one that does not have 32 bytes."""
        try:
            return cls([base64.b64decode(each, validate=True) for each in encoded])
        except binascii.Error as error:
            raise ValueError("an encryption key is not valid base64") from error

    def seal(self, text: str, *, tenant: str, thread_id: str, message_id: str) -> str:
        nonce = os.urandom(_NONCE)
        header = VERSION + self._first
        bound = header + _bound_to(tenant, thread_id, message_id)
        sealed = self._keys[self._first].encrypt(nonce, text.encode(), bound)
        return base64.urlsafe_b64encode(header + nonce + sealed).rstrip(b"=").decode()

    def seal_compacted(self, text: str, *, tenant: str) -> str:
        """Seal the messages that a model gets after a compaction, for the tenant's clients to send back."""
        return self.seal(text, tenant=tenant, thread_id=COMPACTION_THREAD, message_id=COMPACTION_MESSAGE)

    def open_compacted(self, value: str, *, tenant: str) -> str | None:
        return self.open(value, tenant=tenant, thread_id=COMPACTION_THREAD, message_id=COMPACTION_MESSAGE)

    def open(self, value: str, *, tenant: str, thread_id: str, message_id: str) -> str | None:
        """The text, or None for a value that was not sealed with these keys for this tenant, thread and message."""
        try:
            raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        header, nonce, sealed = raw[: 1 + _NAME], raw[1 + _NAME : 1 + _NAME + _NONCE], raw[1 + _NAME + _NONCE :]
        key = self._keys.get(header[1:])
        if header[:1] != VERSION or key is None or len(sealed) < 16:
            return None
        try:
            return key.decrypt(nonce, sealed, header + _bound_to(tenant, thread_id, message_id)).decode()
        except (InvalidTag, UnicodeDecodeError):
            return None


def _name_of(key: bytes) -> bytes:
    return hashlib.sha256(b"agent-server key name\0" + key).digest()[:_NAME]


def _bound_to(tenant: str, thread_id: str, message_id: str) -> bytes:
    return msgspec.json.encode([tenant, thread_id, message_id])
