"""Tokens of a test issuer: taken, and refused for every way in which one can be wrong."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from adapters.errors import RequestError
from agent_server.http.auth.principal import Quota
from agent_server.http.auth.token_issuer import FRESH_SECONDS, MOST_PAUSE_SECONDS, PAUSE_SECONDS, STALE_SECONDS, Issuer
from agent_server.http.server import StartupError
from agent_server.settings import IssuerSettings
from tests.contract.engines import listening
from tests.server import scripted, serving

AUDIENCE = "agent-server"
URL = "https://issuer.example"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def published(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: Mapping[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)  # type: ignore[call-overload]
    return {**found, "kid": kid, **more}


class TestIssuer:
    """Publishes keys under a clock that is turned by hand, and signs what it is told to."""

    __test__ = False

    def __init__(self, url: str = URL) -> None:
        self.url = url
        self.keys = [published(RSA, "one")]
        self.now = 1000.0
        self.asked: list[str] = []
        self.down = False

    async def fetch(self, url: str) -> Mapping[str, Any]:
        self.asked.append(url)
        if self.down:
            raise OSError("down")
        return self.document(url)

    def document(self, url: str) -> Mapping[str, Any]:
        if url.endswith("openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": self.keys}

    def issuer(self, **changes: Any) -> Issuer:
        settings = IssuerSettings(**{"issuer": self.url, "audience": AUDIENCE, **changes})
        assert settings.fault() == ""
        return Issuer(settings, fetch=self.fetch, clock=lambda: self.now)

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        base = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "tenant": "acme",
            "scope": "use metrics",
            "exp": now + 60,
        }
        return {name: value for name, value in {**base, **changes}.items() if value is not None}

    def token(self, key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**changes), key, algorithm=algorithm, headers=headers)


@pytest.fixture
def house() -> TestIssuer:
    return TestIssuer()


async def test_a_good_token_says_who_asks(house: TestIssuer):
    limits = {"requests_per_minute": 5, "runs": 2}
    found = await house.issuer().find(house.token(limits=limits))
    assert (found.tenant, found.name, found.scopes) == ("acme", "ada", {"use", "metrics"})
    assert found.quota == Quota(requests_per_minute=5, runs=2)
    assert house.asked == [f"{URL}/.well-known/openid-configuration", f"{URL}/keys"]


async def test_the_claims_are_named_by_settings(house: TestIssuer):
    issuer = house.issuer(tenant_claim="sub", scope_claim="roles", scope_prefix="as:", keys_url=f"{URL}/direct")
    found = await issuer.find(house.token(roles=["as:use", "operate", "as:other"]))
    assert (found.tenant, found.scopes, house.asked) == ("ada", {"use"}, [f"{URL}/direct"])


def raw_claims(house: TestIssuer, exp: bytes) -> str:
    """A token that the issuer signed, whose claims have this in the place of the expiry."""
    claims = json.dumps(house.claims(exp="@")).encode().replace(b'"@"', exp)
    return jwt.PyJWS().encode(claims, RSA, algorithm="RS256", headers={"kid": "one"})


def forged(house: TestIssuer, algorithm: Any, sign: Any, header: bytes = b"") -> str:
    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    first = base64.urlsafe_b64encode(header) if header else part({"alg": algorithm, "kid": "one", "typ": "JWT"})
    body = first.rstrip(b"=") + b"." + part(house.claims())
    return (body + b"." + base64.urlsafe_b64encode(sign(body)).rstrip(b"=")).decode()


def hmac_with_the_public_key(house: TestIssuer) -> str:
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = RSA.public_key().public_bytes(*form)
    return forged(house, "HS256", lambda body: hmac.new(public, body, sha256).digest())


BAD = {
    "expired": (lambda house: house.token(exp=int(time.time()) - 31), "expired"),
    "not yet": (lambda house: house.token(nbf=int(time.time()) + 600), "not valid yet"),
    "audience": (lambda house: house.token(aud="another"), "another audience"),
    "no audience": (lambda house: house.token(aud=None), "lacks aud"),
    "no expiry": (lambda house: house.token(exp=None), "lacks exp"),
    "issuer": (lambda house: house.token(iss="https://evil.example"), "another issuer"),
    "key": (lambda house: house.token(OTHER), "signature"),
    "unknown kid": (lambda house: house.token(kid="unknown"), "no such key"),
    "none": (lambda house: forged(house, "none", lambda _: b""), "published key"),
    "hmac": (hmac_with_the_public_key, "published key"),
    "algorithm of another key": (lambda house: house.token(EC, algorithm="ES256"), "signature"),
    "algorithms": (lambda house: forged(house, ["RS256"], lambda _: b""), "published key"),
    "algorithm of no kind": (lambda house: forged(house, {}, lambda _: b""), "published key"),
    "changed": (lambda house: house.token()[:-8] + "AAAAAAAA", "signature"),
    "no jwt": (lambda house: "ey.x.y", "cannot be read"),
    "no tenant": (lambda house: house.token(tenant=None), "no tenant"),
    "odd tenant": (lambda house: house.token(tenant=["a"]), "no tenant"),
    "odd limits": (lambda house: house.token(limits={"runs": "all"}), "limits"),
    "negative limits": (lambda house: house.token(limits={"runs": -1}), "limits"),
    "long": (lambda house: house.token(x="x" * 20_000), "too long"),
    "control character": (lambda house: house.token(tenant="acme\x00"), "printable"),
    "separator": (lambda house: house.token(tenant="acme\x1fother"), "printable"),
    "direction": (lambda house: house.token(tenant="acme\u202e"), "printable"),
    "half a pair": (lambda house: house.token(tenant="acme\ud800"), "printable"),
    "space around": (lambda house: house.token(tenant=" acme"), "printable"),
    "long tenant": (lambda house: house.token(tenant="a" * 257), "256"),
    "odd subject": (lambda house: house.token(sub="ada\n[info] all is well"), "printable"),
    "expiry as a string": (lambda house: house.token(exp=str(int(time.time()) + 60)), "exp must be a number"),
    "expiry in milliseconds": (lambda house: house.token(exp=int(time.time() * 1000)), "days ahead"),
    "expiry without end": (lambda house: raw_claims(house, b"Infinity"), "cannot be read"),
    "expiry that is no number": (lambda house: raw_claims(house, b"NaN"), "cannot be read"),
    "deep claims": (lambda house: raw_claims(house, b"[" * 6000), "cannot be read"),
    "deep header": (lambda house: forged(house, None, lambda _: b"", b"[" * 8000), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_and_says_why(house: TestIssuer, name: str):
    make, said = BAD[name]
    issuer = house.issuer()
    with pytest.raises(RequestError, match=said) as raised:
        await issuer.find(make(house))
    assert raised.value.kind == "unauthorized"
    assert (await issuer.find(house.token())).tenant == "acme"


async def test_the_clocks_may_differ_a_little(house: TestIssuer):
    assert await house.issuer().find(house.token(exp=int(time.time()) - 20))


async def test_keys_that_the_issuer_changes_are_found_and_old_ones_end(house: TestIssuer):
    issuer = house.issuer()
    await issuer.find(house.token())
    house.keys = [published(EC, "two"), published(OTHER, "enc", use="enc")]
    house.now += PAUSE_SECONDS
    assert await issuer.find(house.token(EC, "two", "ES256"))
    with pytest.raises(RequestError, match="no such key"):
        await issuer.find(house.token())
    with pytest.raises(RequestError, match="no such key"):
        await issuer.find(house.token(OTHER, "enc"))


async def test_made_up_key_ids_cost_the_issuer_nothing(house: TestIssuer):
    issuer = house.issuer()
    await issuer.find(house.token())
    before = len(house.asked)
    for number in range(50):
        with pytest.raises(RequestError):
            await issuer.find(house.token(kid=f"made-up-{number}"))
    assert len(house.asked) == before


async def test_an_issuer_out_of_reach_is_told_and_its_last_keys_are_used_for_a_day(house: TestIssuer):
    house.down = True
    issuer = house.issuer()
    with pytest.raises(RequestError) as raised:
        await issuer.find(house.token())
    assert raised.value.kind == "unavailable" and raised.value.retry_after
    house.down = False
    house.now += PAUSE_SECONDS
    await issuer.find(house.token())
    house.down = True
    house.now += FRESH_SECONDS + 1
    assert await issuer.find(house.token())
    await asyncio.sleep(0)
    house.now += STALE_SECONDS
    with pytest.raises(RequestError) as raised:
        await issuer.find(house.token())
    assert raised.value.kind == "unavailable"


async def test_known_keys_do_not_wait_for_an_issuer_that_hangs(house: TestIssuer, monkeypatch: pytest.MonkeyPatch):
    issuer, asked, hangs = house.issuer(), [], asyncio.Event()
    await issuer.find(house.token())

    async def fetch(url: str) -> Mapping[str, Any]:
        asked.append(url)
        await hangs.wait()
        return house.document(url)

    monkeypatch.setattr(issuer._keys, "_fetch", fetch)
    house.now += FRESH_SECONDS + 1
    async with asyncio.timeout(2):
        for _ in range(50):
            await issuer.find(house.token())
            await asyncio.sleep(0)
    assert len(asked) == 1  # one request at a time
    hangs.set()
    await wait_for_renewal(issuer)
    assert asked == [f"{URL}/.well-known/openid-configuration", f"{URL}/keys"]


async def wait_for_renewal(issuer: Issuer) -> None:
    assert issuer._keys._renewing is not None
    await issuer._keys._renewing


async def test_an_issuer_that_fails_is_asked_less_and_less_often(house: TestIssuer):
    issuer = house.issuer()
    await issuer.find(house.token())
    house.down, before = True, len(house.asked)
    house.now += FRESH_SECONDS + 1
    for _ in range(360):  # an hour
        await issuer.find(house.token())
        await wait_for_renewal(issuer)
        house.now += 10
    assert 10 <= len(house.asked) - before <= 20
    house.down = False
    house.now += MOST_PAUSE_SECONDS
    await issuer.find(house.token())
    await wait_for_renewal(issuer)
    house.now += STALE_SECONDS - 1
    assert await issuer.find(house.token())


async def test_tokens_with_an_unknown_key_wait_for_one_request(house: TestIssuer):
    issuer = house.issuer()
    found = await asyncio.gather(*(issuer.find(house.token()) for _ in range(20)))
    assert len(found) == 20 and len(house.asked) == 2


@pytest.mark.parametrize("place", ["http://elsewhere.example/keys", "", "file:///etc/passwd"])
async def test_keys_are_fetched_over_https_alone(house: TestIssuer, place: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house, "document", lambda url: {"issuer": URL, "jwks_uri": place})
    with pytest.raises(RequestError) as raised:
        await house.issuer().find(house.token())
    assert raised.value.kind == "unavailable" and len(house.asked) == 1


@asynccontextmanager
async def published_at() -> AsyncIterator[TestIssuer]:
    """An issuer that answers over HTTP."""
    house = TestIssuer()

    async def answer(request: Any) -> JSONResponse:
        return JSONResponse(house.document(request.url.path))

    routes = [Route("/.well-known/openid-configuration", answer), Route("/keys", answer)]
    async with listening(Starlette(routes=routes)) as url:
        house.url = url
        yield house


async def test_a_server_takes_tokens_beside_keys():
    async with (
        published_at() as house,
        serving(scripted("Hi."), api_keys=("acme:static",), oidc_issuer=house.url, oidc_audience=AUDIENCE) as running,
        httpx.AsyncClient(base_url=running.url, timeout=10) as client,
    ):

        async def asked(key: str, path: str = "/agui/threads") -> httpx.Response:
            return await client.get(path, headers={"authorization": f"Bearer {key}"})

        assert (await asked("static")).status_code == (await asked(house.token())).status_code == 200
        expired = await asked(house.token(exp=1))
        assert expired.status_code == 401 and "expired" in expired.text
        assert (await asked(house.token(scope="metrics"))).status_code == 403
        assert (await asked(house.token(scope="operate"), "/operator/replicas")).status_code == 404
        assert (await asked("unknown")).status_code == 401


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"oidc_issuer": URL}, "AUDIENCE"),
        ({"oidc_issuer": "http://issuer.example", "oidc_audience": AUDIENCE}, "https"),
        ({"oidc_issuer": URL, "oidc_audience": AUDIENCE, "oidc_keys_url": "keys"}, "https"),
    ],
)
async def test_settings_that_would_admit_anybody_stop_the_start(changes: dict[str, str], said: str):
    with pytest.raises(StartupError, match=said):
        async with serving(scripted("Hi."), **changes):
            pass
