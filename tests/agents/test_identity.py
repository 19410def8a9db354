"""Who a run works for, and what of that reaches tools, agents elsewhere and upstreams: what a policy names, and no more."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from aiohttp import web

from agent_server.agents import Agent, LoadError, McpServer, ToolContext, UserConsent, tool
from agent_server.agents.guests import load_named
from agent_server.agents.mcp.consent import Grant, PendingConsent
from agent_server.engines.scripted import Script
from agent_server.user import NEVER_FORWARDED, Forward, User, forward_of
from tests.agents.guests.talking import body, user
from tests.agents.guests.test_remote_agent import SAID, elsewhere, stream
from tests.server import scripted, serving

KEY = "acme:secret-of-acme"
SENT = {
    "authorization": "Bearer secret-of-acme", "cookie": "session=1", "x-team": "blue", "x-other": "2",
    "x-user-id": "ann",
}  # fmt: skip
POLICY = {"headers": ["X-Team", "X-Missing"], "user": "X-Who"}


@tool
def whoami(context: ToolContext) -> dict:
    """Who asks."""
    who = context.user
    return {"tenant": who.tenant, "name": who.name, "headers": dict(who.headers), "claims": dict(who.claims)}


CALL = '<tool_call>{"name": "whoami", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(("forward", "headers"), [(Forward(), {}), (Forward(headers=("X-Team",)), {"x-team": "blue"})])
async def test_a_tool_knows_its_user_and_the_headers_that_its_agent_names(forward, headers):
    agent = Agent(name="default", tools=[whoami], forward=forward)
    engine = scripted([Script(text=CALL), Script(text="Done.")])
    async with serving(engine, agents=[agent], api_keys=KEY, user_header="X-User-Id") as running:
        frames = await _asked(f"{running.url}/agui")
    (result,) = [json.loads(each["content"]) for each in frames if each["type"] == "TOOL_CALL_RESULT"]
    assert result == {"tenant": "acme", "name": "ann", "headers": headers, "claims": {}}


async def _asked(url: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(url, json=body(user("go")), headers=SENT)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


async def test_a_user_that_someone_without_a_key_names_is_not_believed():
    agent = Agent(name="default", tools=[whoami])
    engine = scripted([Script(text=CALL), Script(text="Done.")])
    async with serving(engine, agents=[agent], user_header="X-User-Id") as running:
        frames = await _asked(f"{running.url}/agui")
    (result,) = [json.loads(each["content"]) for each in frames if each["type"] == "TOOL_CALL_RESULT"]
    assert result["name"] == ""


async def test_an_agent_elsewhere_is_sent_what_its_policy_names_and_the_audit_log_knows(tmp_path):
    got: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        got.append({name.lower(): value for name, value in request.headers.items()})
        return stream(SAID)

    options: dict[str, Any] = {"api_keys": KEY, "user_header": "X-User-Id", "audit_log": str(tmp_path / "audit.log")}
    async with elsewhere(answer) as url:
        for policy in ({}, {"far": POLICY}):
            async with serving(scripted("no"), agent=(f"far={url}",), agent_forward=policy, **options) as running:
                await _asked(f"{running.url}/agui/far")
    nothing, named = got
    assert not {"authorization", "cookie", "x-team", "x-other", "x-user-id", "x-who"} & nothing.keys()
    assert {name: named[name] for name in ("x-team", "x-who")} == {"x-team": "blue", "x-who": "ann"}
    assert not {"authorization", "cookie", "x-other", "x-missing"} & named.keys()
    (noted,) = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines() if "forwarded" in line]
    assert (noted["target"], noted["headers"], noted["tenant"]) == ("agent:far", ["x-team", "x-who"], "acme")


@pytest.mark.parametrize("name", [*sorted(NEVER_FORWARDED), "Sec-Fetch-Site", "Cookie"])
def test_keys_and_cookies_can_be_named_by_no_policy(name):
    with pytest.raises(ValueError, match="never forwarded"):
        Forward(headers=(name,))
    with pytest.raises(ValueError, match="never forwarded"):
        forward_of({"claims": {"email": name}})


def test_a_policy_with_a_mistake_is_refused_by_the_agent_s_name():
    with pytest.raises(LoadError, match=r"agent_forward of far: .*unknown field"):
        load_named(["far=http://one.example"], forward={"far": {"header": ["x"]}})
    with pytest.raises(LoadError, match="agent_forward names near"):
        load_named(["far=http://one.example"], forward={"near": {}})


def test_claims_become_headers_and_what_no_header_can_hold_is_left_out():
    someone = User(name="ann", claims={"email": "ann@example", "groups": ["a"], "bad": "a\r\nx: 1"})
    policy = forward_of({"claims": {"email": "X-Email", "groups": "X-Groups", "bad": "X-Bad"}, "user": "X-User"})
    assert policy.headers_for(someone) == {"x-email": "ann@example", "x-user": "ann"}


async def test_the_way_back_from_a_sign_in_needs_no_key_and_asks_a_user_with_a_name_once_more():
    far = McpServer(name="far", url="http://127.0.0.1:9/mcp", oauth=UserConsent())
    agent = Agent(name="default", mcp_servers=[far])
    async with serving(scripted("no"), agents=[agent], api_keys=KEY) as running:
        consents = running.server.mcp.consents
        pending = PendingConsent(url="u", state="abc", verifier="v" * 43, began_at=0.0, client={"client_id": "c"})
        await consents.save(User(tenant="acme", name="<ann>"), far.url, Grant(pending=pending))
        async with httpx.AsyncClient(base_url=running.url) as browser:
            unknown = await browser.get("/oauth/callback?state=x&code=1")
            first = await browser.get("/oauth/callback?state=abc&code=1")
            second = await browser.get("/oauth/callback?state=abc&code=1&confirm=yes")
            third = await browser.get("/oauth/callback?state=abc&code=1&confirm=yes")
    assert (unknown.status_code, second.status_code, third.status_code) == (400, 400, 400)
    assert "&lt;ann&gt; of acme" in first.text and "confirm=yes" in first.text and first.status_code == 200
    assert "frame-ancestors 'none'" in first.headers["content-security-policy"]
    assert "took too long" in second.text and "unknown" in third.text
