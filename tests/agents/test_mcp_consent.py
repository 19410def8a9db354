"""MCP servers that users sign in to: the consent link as an interrupt, the way back, tokens kept and renewed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from agent_server.agents import Agent, LoadError, McpServer, Sealer, UserConsent
from agent_server.agents.loading import load_mcp_file
from agent_server.agents.mcp.consent import ConsentRefused
from agent_server.http.assemble import build_server
from agent_server.http.server import StartupError
from agent_server.runs.store import Store
from agent_server.settings import Settings
from agent_server.user import User, current_user
from events.vocabulary import InterruptOutcome, RunFinished, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

HERE = Path(__file__).parent
KEY = b"k" * 32
PUBLIC = "http://localhost:8000"


@contextlib.contextmanager
def running(python: str, script: str, *arguments: str) -> Iterator[str]:
    """A program that listens on a free port, which is its first argument: its origin."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([python, str(HERE / script), str(port), *arguments], stderr=subprocess.DEVNULL)
    origin, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(origin, timeout=5)
            break
        time.sleep(0.1)
    yield origin
    process.kill()
    process.wait()


@pytest.fixture(scope="module", params=["sdk", pytest.param("authlib", marks=pytest.mark.mcp)])
def origin(request):
    """A server that is its own authorization server, and one beside Authlib's."""
    with contextlib.ExitStack() as stack:
        issuer = []
        if request.param == "authlib":
            python = str(Path(os.environ["MCP_ENV"]) / "bin" / "python")
            issuer.append(stack.enter_context(running(python, "authlib_server.py")))
        yield stack.enter_context(running(sys.executable, "consent_server.py", *issuer))


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def house(origin: str, url: str, *scripts: str, **more) -> House:
    server = McpServer(name="far", url=f"{origin}/mcp", oauth=UserConsent())
    agent = Agent(name="default", mcp_servers=[server])
    return House(agent, Model([*scripts, "Done."]), Store(url), sealer=Sealer([KEY]), public_url=PUBLIC, **more)


def questions(events) -> list:
    last = events[-1]
    assert isinstance(last, RunFinished) and isinstance(last.outcome, InterruptOutcome), last
    return list(last.outcome.interrupts)


def yes(interrupt) -> dict:
    return {"interruptId": interrupt.id, "status": "resolved", "payload": {"approved": True}}


def results(events) -> list[str]:
    return [each.content for each in of(events, ToolCallResult)]


def visit(link: str) -> dict[str, str]:
    """What the authorization server sends the user's browser back with."""
    answer = httpx.get(link, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    assert answer.headers["location"].startswith(f"{PUBLIC}/oauth/callback?")
    return {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["location"]).query).items()}


async def come_back(house: House, back: dict[str, str]) -> None:
    mcp = house.served["default"].mcp
    await mcp.consents.finish(back["state"], back.get("code", ""), back.get("iss"), back.get("error"))


def as_user(name: str) -> None:
    """Ask as this user from here on; a test has a context of its own."""
    current_user.set(User(name=name))


async def sign_in(house: House) -> None:
    (asked,) = questions(await house.ask("go"))
    await come_back(house, visit(asked.metadata["url"]))
    assert "signed in to far" in results(await house.resume(yes(asked)))[0]


async def test_the_consent_is_an_interrupt_and_both_halves_survive_a_restart(origin, url):
    async with house(origin, url, call("sign_in_far")) as first:
        (asked,) = questions(await first.ask("go"))
        assert asked.message.startswith("Sign in to far") and asked.metadata["mode"] == "url"
        assert first.model.told[0]["tools"] == ["sign_in_far"]
    back = visit(asked.metadata["url"])
    async with house(origin, url, first_id=500) as second:
        await come_back(second, back)
    async with house(origin, url, call("secret"), first_id=1000) as third:
        third.messages, third.runs = first.messages, first.runs
        signed_in, secret = results(await third.resume(yes(asked)))
        assert signed_in.startswith("The user is signed in to far") and "secret" in signed_in
        assert secret.startswith("42 for ")
        assert "secret" in third.model.told[0]["tools"] and "sign_in_far" not in third.model.told[0]["tools"]


async def test_nothing_of_a_token_is_readable_in_the_database(origin, url, tmp_path):
    async with house(origin, url, call("sign_in_far"), "Done.", call("secret")) as signed_in:
        await sign_in(signed_in)
    rows = sqlite3.connect(tmp_path / "store.db").execute("select * from grants").fetchall()
    assert rows and "access" not in str(rows) and "refresh" not in str(rows) and "verifier" not in str(rows)
    async with house(origin, url) as other_key:
        other_key.served["default"].mcp.consents._sealer = Sealer([b"o" * 32])
        assert (await other_key.served["default"].mcp.consents.grant(User(), f"{origin}/mcp")).tokens is None


async def test_a_token_is_one_user_s(origin, url):
    async with house(origin, url, call("sign_in_far"), "Done.", call("sign_in_far"), call("secret")) as both:
        as_user("ann")
        await sign_in(both)
        as_user("bob")
        both.messages = []
        questions(await both.ask("go", threadId="bob's"))
        assert both.model.told[-1]["tools"] == ["sign_in_far"]
        as_user("ann")
        both.messages = []
        assert results(await both.ask("go", threadId="ann's"))[0].startswith("42 for ")


async def test_a_link_is_used_once_and_belongs_to_its_sign_in(origin, url):
    async with house(origin, url, call("sign_in_far")) as asking:
        (asked,) = questions(await asking.ask("go"))
        back = visit(asked.metadata["url"])
        with pytest.raises(ConsentRefused, match="unknown"):
            await come_back(asking, {**back, "state": "made-up"})
        (again,) = questions(await asking.resume(yes(asked)))
        assert again.metadata["url"] == asked.metadata["url"], "nothing was completed: the same link is asked for again"
        await come_back(asking, back)
        with pytest.raises(ConsentRefused):
            await come_back(asking, back)


async def test_a_refusal_at_the_authorization_server_ends_the_sign_in(origin, url):
    async with house(origin, url, call("sign_in_far")) as asking:
        (asked,) = questions(await asking.ask("go"))
        back = visit(asked.metadata["url"])
        with pytest.raises(ConsentRefused, match="access_denied"):
            await come_back(asking, {"state": back["state"], "error": "access_denied"})
        refused = await asking.resume({**yes(asked), "payload": {"approved": False}})
        assert results(refused) == ["Error: The user did not sign in to far."]


async def test_where_no_person_can_be_asked_the_model_is_told(origin):
    server = McpServer(name="far", url=f"{origin}/mcp", oauth=UserConsent())
    store = Store("sqlite://")
    async with House(Agent(name="default", mcp_servers=[server]), Model([call("sign_in_far"), "Done."]), store,
                     public_url=PUBLIC) as asking:  # fmt: skip
        from events.options import GenerationOptions

        (content,) = results(await asking.ask("go", options=GenerationOptions(store=False)))
    assert "this connection cannot ask a person" in content


async def test_a_refused_token_is_renewed_and_one_that_cannot_be_is_asked_for_in_the_call(url):
    with running(sys.executable, "consent_server.py") as origin:
        script = [call("sign_in_far"), "Done.", call("forget"), call("secret"), call("forget_all"), call("secret")]
        async with house(origin, url, *script) as signed_in:
            await sign_in(signed_in)
            events = await signed_in.ask("go on")
            forgotten, secret, all_forgotten = results(events)
            assert (forgotten, all_forgotten) == ("forgotten", "forgotten") and secret.startswith("42 for ")
            (asked,) = questions(events)
            assert asked.metadata["mode"] == "url", "the call itself asks"
            await come_back(signed_in, visit(asked.metadata["url"]))
            assert results(await signed_in.resume(yes(asked)))[0].startswith("42 for ")


async def test_users_are_sent_to_no_other_authorization_server_than_the_one_that_is_named(origin):
    oauth = UserConsent(issuer="https://login.example")
    agent = Agent(name="default", mcp_servers=[McpServer(name="far", url=f"{origin}/mcp", oauth=oauth)])
    async with House(agent, Model(["Done."]), Store("sqlite://"), public_url=PUBLIC) as asking:
        events = await asking.ask("go")
    assert "far is not available" in events[-1].metadata["warnings"][0]
    assert asking.model.told[0]["tools"] == []


def test_tokens_are_only_kept_encrypted(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"far": {"url": "https://far.example/mcp", "oauth": {}}}}))
    settings = {"engine": ("scripted",), "mcp": (str(path),), "store_url": f"sqlite:///{tmp_path}/store.db"}
    with pytest.raises(StartupError, match="Set AGENT_SERVER_ENCRYPTION_KEYS"):
        build_server(Settings(_env_file=None, **settings))


def test_the_file_tells_a_user_s_consent_from_this_server_s_own_credentials(tmp_path):
    path = tmp_path / "mcp.json"

    def read(oauth: object) -> object:
        path.write_text(json.dumps({"mcpServers": {"far": {"url": "https://far.example/mcp", "oauth": oauth}}}))
        return load_mcp_file(path, {})[0].oauth

    assert read({}) == UserConsent() and read({"clientId": "a", "callbackPort": 8080}) == UserConsent(client_id="a")
    assert read({"clientId": "a", "clientSecret": "b", "grant": "authorization_code", "issuer": "https://i.example"})
    with pytest.raises(LoadError, match="needs the issuer"):
        read({"clientId": "a", "clientSecret": "b"})
    with pytest.raises(LoadError, match="unknown grant 'password'"):
        read({"grant": "password"})
