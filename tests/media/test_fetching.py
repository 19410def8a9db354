"""What is fetched and from where: a table of rules, each with its sentence; then over a real connection."""

import asyncio
import datetime
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent_server.media.fetching import Fetcher, is_public
from agent_server.media.refusal import MediaRefused
from agent_server.settings import MediaLimits

HOSTS = frozenset({"pictures.example", "pictures.example:8443", "10.0.0.7", "xn--bcher-kva.example"})

RULES = {
    "http://pictures.example/a.png": "over https only",
    "file:///etc/passwd": "over https only",
    "ftp://pictures.example/a.png": "over https only",
    "//pictures.example/a.png": "over https only",
    "a.png": "over https only",
    "https://elsewhere.example/a.png": r"does not fetch from elsewhere\.example; .*--media-host",
    "https://pictures.example.elsewhere.example/": "does not fetch from",
    "https://elsewhere.example/pictures.example": "does not fetch from",
    "https://elsewhere.example#pictures.example": "does not fetch from",
    "https://elsewhere.example\\@pictures.example/": "cannot be read|does not fetch|name or a password",
    "https://pictures.example:444/a.png": "does not fetch from pictures.example:444",
    "https://ann@pictures.example/a.png": "name or a password",
    "https://ann:key@pictures.example/a.png": "name or a password",
    "https://10.0.0.7/a.png": "is not a public address",
    "https://[::1]/a.png": "does not fetch from",
    "https://2130706433/a.png": "does not fetch from",
    "https://[oops/a.png": "cannot be read",
    "https://": "does not fetch|cannot be read",
}


@pytest.mark.parametrize("url", RULES)
async def test_a_url_that_is_not_allowed_is_not_connected_to(url, monkeypatch):
    async def lookup(*_, **__):
        raise AssertionError("it asked for the address")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup, raising=False)
    with pytest.raises(MediaRefused, match=RULES[url]):
        await Fetcher(MediaLimits(hosts=HOSTS)).fetch(url)


async def test_without_hosts_nothing_is_fetched():
    with pytest.raises(MediaRefused, match="fetches nothing from URLs; send the content itself"):
        await Fetcher(MediaLimits()).fetch("https://pictures.example/a.png")


INSIDE = """
    127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 198.18.0.1
    ::1 :: fe80::1 fe80::1%eth0 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 2002:7f00:1:: 64:ff9b::7f00:1 2001:db8::1
    ::7f00:1 ::a00:1 fec0::1
"""


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946"])
def test_addresses_that_are(address):
    assert is_public(address)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::ffff:127.0.0.1"], []])
async def test_a_name_with_an_address_that_is_not_public_is_not_connected_to(addresses, monkeypatch):
    async def lookup(host, port, **_):
        return [(2, 1, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup, raising=False)
    with pytest.raises(MediaRefused, match="has an address that is not public"):
        await Fetcher(MediaLimits(hosts=HOSTS)).fetch("https://pictures.example/a.png")


# over a real connection


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of our own for media.test: (server's context, client's context)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "media.test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("media.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("certificate") / "both.pem"
    file.write_bytes(pem + secret)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    return serving, ssl.create_default_context(cadata=pem.decode())


@asynccontextmanager
async def serving(handler, certificate, monkeypatch, *, limits=None, looked_up=None, **changes):
    """(fetcher, base URL) of a server at media.test, whose name leads to this machine, once."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate[0])
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    real, asked = loop.getaddrinfo, [] if looked_up is None else looked_up

    async def lookup(host, wanted, **named):
        asked.append(host)
        return await real("127.0.0.1", wanted, **named)

    monkeypatch.setattr(loop, "getaddrinfo", lookup, raising=False)
    limits = MediaLimits(hosts=frozenset({f"media.test:{port}"}), bytes=1000, seconds=5, **changes)
    try:
        yield (
            Fetcher(limits, allowed=lambda address: address == "127.0.0.1", ssl=certificate[1]),
            f"https://media.test:{port}",
        )
    finally:
        await runner.cleanup()


async def test_content_comes_from_the_one_address_that_was_looked_up(certificate, monkeypatch):
    looked_up = []

    async def picture(request):
        assert request.headers["Accept-Encoding"] == "identity"
        assert "Cookie" not in request.headers
        return web.Response(body=b"content")

    async with serving(picture, certificate, monkeypatch, looked_up=looked_up) as (fetcher, base):
        assert await fetcher.fetch(f"{base}/a.png") == b"content"
    assert looked_up == ["media.test"]


async def test_a_certificate_that_nobody_vouches_for(certificate, monkeypatch):
    async def picture(_):
        return web.Response(body=b"content")

    async with serving(picture, certificate, monkeypatch) as (fetcher, base):
        fetcher._ssl = None
        with pytest.raises(MediaRefused, match="cannot be read"):
            await fetcher.fetch(f"{base}/a.png")


ANSWERS = {
    "missing": (lambda base: web.Response(status=404), "answered 404"),
    "too long, and says so": (lambda base: web.Response(body=bytes(1001)), "sends more than 1000 bytes"),
    "compressed": (lambda base: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), "compressed content"),
    "leads inside": (lambda base: web.HTTPFound("http://127.0.0.1/"), "over https only"),
    "leads to a name of ours": (
        lambda base: web.HTTPFound("https://internal.example/"),
        "does not fetch from internal",
    ),
    "leads to an address": (lambda base: web.HTTPFound("https://169.254.169.254/latest"), "does not fetch from 169"),
    "leads nowhere": (
        lambda base: web.Response(status=302, headers={"Location": "https://[::1/"}),
        "a URL that cannot be read",
    ),
    "leads in a circle": (lambda base: web.HTTPFound(f"{base}/again"), "redirects more than 3 times"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers_that_are_not_taken(name, certificate, monkeypatch):
    make, sentence = ANSWERS[name]

    async def handler(request):
        found = make(f"https://{request.host}")
        if isinstance(found, web.HTTPException):
            raise found
        return found

    async with serving(handler, certificate, monkeypatch) as (fetcher, base):
        with pytest.raises(MediaRefused, match=sentence):
            await fetcher.fetch(f"{base}/a.png")


async def test_a_redirect_on_the_same_host_is_followed(certificate, monkeypatch):
    async def handler(request):
        if request.path == "/old":
            raise web.HTTPMovedPermanently("/new")
        return web.Response(body=request.path.encode())

    async with serving(handler, certificate, monkeypatch) as (fetcher, base):
        assert await fetcher.fetch(f"{base}/old") == b"/new"


async def test_too_much_without_a_word_of_how_much(certificate, monkeypatch):
    async def endless(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(20):
            await answer.write(bytes(100))
        return answer

    async with serving(endless, certificate, monkeypatch) as (fetcher, base):
        with pytest.raises(MediaRefused, match="sends more than 1000 bytes"):
            await fetcher.fetch(f"{base}/a.png")


async def test_a_server_that_does_not_finish(certificate, monkeypatch):
    over = asyncio.Event()

    async def slow(request):
        answer = web.StreamResponse(headers={"Content-Length": "10"})
        await answer.prepare(request)
        await over.wait()
        return answer

    async with serving(slow, certificate, monkeypatch) as (fetcher, base):
        fetcher._limits = MediaLimits(hosts=fetcher._limits.hosts, seconds=0.3)
        with pytest.raises(MediaRefused, match=r"did not send the content within 0\.3 seconds"):
            await fetcher.fetch(f"{base}/a.png")
        over.set()
