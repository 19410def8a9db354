"""The certificates by which other servers are verified."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the TLS settings for all clients of this process. httpx2 makes new ones for each client unless it is given
    some, and reads all certificates of the system for it: 50 ms of CPU, in which the event loop serves nobody."""
    return httpx2.create_ssl_context()
