"""A part's source → its bytes, by AG-UI's three kinds: data, a URL, a file that was uploaded before."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from ag_ui.core import DataSource, PartSource, UrlSource

from agent_server.media.fetching import Fetcher
from agent_server.media.refusal import Refused
from agent_server.settings import MediaLimits


async def read_source(source: PartSource, fetcher: Fetcher, limits: MediaLimits) -> bytes:
    """Raises Refused."""
    if isinstance(source, DataSource):
        return from_base64(source.value, limits)
    if not isinstance(source, UrlSource):
        raise Refused("This server keeps no uploaded files; send the content itself, as data or as a data: URL.")
    if source.value[:5].lower() == "data:":
        return from_data_url(source.value, limits)
    return await fetcher.fetch(source.value)


def from_data_url(url: str, limits: MediaLimits) -> bytes:
    """RFC 2397."""
    head, comma, payload = url.partition(",")
    if not comma:
        raise Refused("A data: URL has a comma before its data.")
    if head.lower().endswith(";base64"):
        return from_base64(payload, limits)
    _check_size(len(payload) // 3, limits)
    data = unquote_to_bytes(payload)
    _check_size(len(data), limits)
    return data


def from_base64(text: str, limits: MediaLimits) -> bytes:
    """Base64 with or without padding and white space, also with a data: URL's head in front, which clients leave."""
    if text[:5].lower() == "data:":
        return from_data_url(text, limits)
    _check_size(len(text) // 4 * 3, limits)
    packed = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Refused("The data is not base64.") from None
    if not data:
        raise Refused("The data is empty.")
    return data


def _check_size(size: int, limits: MediaLimits) -> None:
    if size > limits.bytes:
        raise Refused(f"The data has about {size} bytes; at most {limits.bytes} are taken.")
