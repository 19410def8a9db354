"""Signatures of thinking blocks.

The protocol wants every thinking block signed and sent back unchanged. Reasoning that the server sealed carries the
seal (AG-UI's encryptedValue) as its signature. Reasoning shown in the open has nothing to hide: its signature is a
digest of the text, which tells an altered block from an unaltered one.
"""

from __future__ import annotations

import base64
import hashlib

PREFIX = "digest-1."


def digest(thinking: str) -> str:
    made = hashlib.sha256(thinking.encode("utf-8", "replace")).digest()
    return PREFIX + base64.b64encode(made).decode()


def is_digest(signature: str) -> bool:
    return signature.startswith(PREFIX)
