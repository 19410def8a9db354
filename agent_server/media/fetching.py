"""Fetches content from other servers, only from hosts that the operator allows.

A URL's host is resolved once, all its addresses must be public, and the connection goes to one of those, so that a name
that later resolves into this network gains nothing (DNS rebinding). Redirects follow the same rules.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections.abc import Callable, Collection
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from ssl import SSLContext
from urllib.parse import unquote_to_bytes

import aiohttp
from ag_ui.core import DataSource, PartSource, UrlSource
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits

HTTPS_PORT = 443
QUICK_BYTES = 64 * 1024
REDIRECTS = frozenset({301, 302, 303, 307, 308})


def is_public(address: str) -> bool:
    """Return whether an address is public, including an IPv4 address that is embedded in an IPv6 one."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo[1] if parsed.teredo else None)
        if inner is not None and not (inner.is_global and not inner.is_multicast):
            return False
        if parsed in NAT64 or parsed.is_site_local or parsed.packed[:12] == bytes(12):  # ::a.b.c.d (RFC 4291, 2.5.5.1)
            return False
    return parsed.is_global and not parsed.is_multicast


class _Nat64:
    """64:ff9b::/96 (RFC 6052), whose last 32 bits are an IPv4 address that a gateway connects to."""

    def __contains__(self, address: IPv6Address) -> bool:
        return address.packed[:12] == b"\x00\x64\xff\x9b" + bytes(8)


NAT64 = _Nat64()


class PublicLookup(AbstractResolver):
    """Resolves a host to its addresses if all of them are allowed. The connector uses these and no other resolver."""

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        if not addresses or not all(self._allowed(str(entry[4][0])) for entry in addresses):
            raise MediaRefused(f"{host} has an address that is not public.")
        return [
            ResolveResult(
                hostname=host, host=str(a[0]), port=port, family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, a in addresses
        ]

    async def close(self) -> None:
        pass


def allowed_place(
    url: str, hosts: Collection[str], allowed: Callable[[str], bool], *, nowhere: str, option: str, verb: str = "fetch"
) -> URL:
    """Parse a URL and check that its form and its host are allowed; connect only to the URL that is returned. nowhere:
    the error if no hosts are allowed. option: the option that allows hosts. Raises MediaRefused."""
    try:
        where = URL(url)
        host, port = (where.raw_host or "").rstrip(".").lower(), where.port
    except ValueError:
        raise MediaRefused("The URL cannot be read.") from None
    if not hosts:
        raise MediaRefused(nowhere)
    if where.scheme != "https":
        raise MediaRefused("Content is fetched over https only." if verb == "fetch" else "Webhooks go over https only.")
    if where.user or where.password:
        raise MediaRefused(f"A URL with a name or a password is not {'fetched' if verb == 'fetch' else 'taken'}.")
    named = host if port == HTTPS_PORT else f"{host}:{port}"
    if named not in hosts:
        way = "from" if verb == "fetch" else "to"
        raise MediaRefused(f"This server does not {verb} {way} {named}; its operator names hosts with {option}.")
    if is_address(host) and not allowed(host):
        raise MediaRefused(f"{host} is not a public address.")
    return where


class Fetcher:
    """Fetches URLs. allowed: whether an address may be connected to. ssl: the trust settings, by default the system's
    certificate authorities."""

    def __init__(
        self, limits: MediaLimits, *, allowed: Callable[[str], bool] = is_public, ssl: SSLContext | None = None
    ) -> None:
        self._limits = limits
        self._allowed = allowed
        self._ssl = ssl

    async def fetch(self, url: str) -> bytes:
        """Fetch the content of a URL. Raises MediaRefused."""
        where = self._checked(url)
        try:
            async with asyncio.timeout(self._limits.seconds):
                connector = aiohttp.TCPConnector(
                    resolver=PublicLookup(self._allowed), use_dns_cache=False, force_close=True
                )
                async with aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
                ) as session:
                    for _ in range(self._limits.redirects + 1):
                        result = await self._get(session, where)
                        if isinstance(result, bytes):
                            return result
                        where = self._checked(str(result))
                raise MediaRefused(f"{where.host} redirects more than {self._limits.redirects} times.")
        except TimeoutError:
            raise MediaRefused(
                f"{where.host} did not send the content within {self._limits.seconds:g} seconds."
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise MediaRefused(f"{where.host} cannot be read ({type(error).__name__}).") from error

    def _checked(self, url: str) -> URL:
        nowhere = "This server fetches nothing from URLs; send the content itself, as data or a data: URL."
        return allowed_place(url, self._limits.hosts, self._allowed, nowhere=nowhere, option="--media-host")

    async def _get(self, session: aiohttp.ClientSession, where: URL) -> bytes | URL:
        """Return the content, or the target of a redirect."""
        headers = {"Accept": "image/*, audio/*, */*;q=0.5", "Accept-Encoding": "identity"}
        async with session.get(where, headers=headers, allow_redirects=False, ssl=self._ssl or True) as answer:
            if answer.status in REDIRECTS and (target := answer.headers.get("Location")):
                try:
                    return where.join(URL(target))
                except ValueError:
                    raise MediaRefused(f"{where.host} redirects to a URL that cannot be read.") from None
            if answer.status != 200:
                raise MediaRefused(f"{where.host} answered {answer.status}.")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise MediaRefused(f"{where.host} sent compressed content, which was not requested.")
            most = self._limits.bytes
            if (answer.content_length or 0) > most:
                raise MediaRefused(f"{where.host} sends more than {most} bytes.")
            body = bytearray()
            async for piece in answer.content.iter_chunked(64 * 1024):
                body += piece
                if len(body) > most:
                    raise MediaRefused(f"{where.host} sends more than {most} bytes.")
            return bytes(body)


@lru_cache(256)
def is_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def digest_of(data: bytes) -> bytes:
    """Return a digest of a file's content, computed in a thread if it takes more than about 0.1 ms."""
    if len(data) > QUICK_BYTES:
        return (await asyncio.to_thread(blake2b, data, digest_size=16)).digest()
    return blake2b(data, digest_size=16).digest()


async def read_source(source: PartSource, fetcher: Fetcher, limits: MediaLimits) -> bytes:
    """Return the bytes of a content part's source. Raises MediaRefused."""
    if isinstance(source, DataSource):
        return from_base64(source.value, limits)
    if not isinstance(source, UrlSource):
        raise MediaRefused("This server keeps no uploaded files; send the content itself, as data or as a data: URL.")
    if source.value[:5].lower() == "data:":
        return from_data_url(source.value, limits)
    return await fetcher.fetch(source.value)


def from_data_url(url: str, limits: MediaLimits) -> bytes:
    """Decode a data: URL (RFC 2397). Raises MediaRefused."""
    head, comma, payload = url.partition(",")
    if not comma:
        raise MediaRefused("The data: URL has no comma before its data.")
    if head.lower().endswith(";base64"):
        return from_base64(payload, limits)
    _check_size(len(payload) // 3, limits)
    data = unquote_to_bytes(payload)
    _check_size(len(data), limits)
    return data


def from_base64(text: str, limits: MediaLimits) -> bytes:
    """Decode base64 with or without padding and white space, and with the prefix of a data: URL, which some clients
    leave. Raises MediaRefused."""
    if text[:5].lower() == "data:":
        return from_data_url(text, limits)
    _check_size(len(text) // 4 * 3, limits)
    packed = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise MediaRefused("The data is not base64.") from None
    if not data:
        raise MediaRefused("The data is empty.")
    return data


def _check_size(size: int, limits: MediaLimits) -> None:
    if size > limits.bytes:
        raise MediaRefused(f"The data has about {size} bytes; the limit is {limits.bytes}.")
