"""Sealed reasoning on wires that know no threads.

A seal opens for the thread and the message that it was made for. A wire that gives a client one opaque string puts
both beside the seal, and reads them back when the client returns it.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

PREFIX = "sealed-1."


class Seal(NamedTuple):
    thread_id: str
    message_id: str
    value: str


def wrap(seal: Seal) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(list(seal))).decode()


def unwrap(text: str) -> Seal | None:
    """None for a string that was not made here."""
    if not text.startswith(PREFIX):
        return None
    try:
        thread_id, message_id, value = msgspec.json.decode(
            base64.urlsafe_b64decode(text.removeprefix(PREFIX)), type=tuple[str, str, str]
        )
    except (binascii.Error, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return Seal(thread_id, message_id, value)
