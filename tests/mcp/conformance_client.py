"""An agent's run as the client that the MCP conformance suite tests: `python -m tests.mcp.conformance_client URL`.

The suite names the scenario in MCP_CONFORMANCE_SCENARIO and gives its credentials in MCP_CONFORMANCE_CONTEXT. A scripted
model calls every tool of the server; a person signs in where that is asked, and leaves forms as they are.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from urllib.parse import parse_qs, urlsplit

import httpx

from agent_server.agents import Agent, ClientCredentials, McpServer, UserConsent
from agent_server.agents.mcp import sessions
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome
from tests.agents.harness import House
from tests.agents.models import Model, call

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}
QUESTIONS = 6
"""Questions that the person answers before giving up."""


def issuer_of(url: str) -> str:
    metadata = httpx.get(f"{url.rsplit('/', 1)[0]}/.well-known/oauth-protected-resource/mcp").json()
    return metadata["authorization_servers"][0]


def server(url: str) -> McpServer:
    if not SCENARIO.startswith("auth/"):
        return McpServer(name="server", url=url)
    if SCENARIO.startswith("auth/client-credentials"):
        credentials = ClientCredentials(
            client_id=CONTEXT["client_id"],
            client_secret=CONTEXT.get("client_secret", ""),
            private_key=CONTEXT.get("private_key_pem", ""),
            issuer=issuer_of(url),
        )
        return McpServer(name="server", url=url, oauth=credentials)
    consent = UserConsent(
        client_id=CONTEXT.get("client_id", ""),
        client_secret=CONTEXT.get("client_secret", ""),
        issuer=issuer_of(url) if CONTEXT.get("client_secret") else "",
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )
    return McpServer(name="server", url=url, oauth=consent)


async def answered(house: House, interrupt) -> dict[str, object]:
    """A person's answer: the link is followed and the browser comes back, or the form is left as it is."""
    payload: dict[str, object] = {}
    if interrupt.metadata["mode"] == "url":
        payload["approved"] = True
        async with httpx.AsyncClient() as browser:
            location = (await browser.get(interrupt.metadata["url"])).headers["location"]
        back = {name: value for name, (value,) in parse_qs(urlsplit(location).query).items()}
        consents = house.served["default"].mcp.consents
        await consents.finish(back["state"], back.get("code", ""), back.get("iss"), back.get("error"))
    return {"interruptId": interrupt.id, "status": "resolved", "payload": payload}


def script(told: dict) -> str:
    """Every tool is called once the user asks, and the results are the end."""
    if told["messages"][-1]["role"] != "user":
        return "Done."
    return "".join(call(name, **ARGUMENTS.get(name, {})) for name in told["tools"]) or "There are no tools."


async def main(url: str) -> None:
    sessions.WAIT_SECONDS = 20.0
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/store.db")
        agent = Agent(name="default", mcp_servers=[server(url)])
        async with House(agent, Model(script), store, public_url="http://localhost:8000") as house:
            for _ in range(2):  # once to sign in, where that is asked, and then for the tools behind it
                events = await house.ask("Call your tools.")
                for _ in range(QUESTIONS):
                    outcome = getattr(events[-1], "outcome", None)
                    if not isinstance(outcome, InterruptOutcome):
                        break
                    events = await house.resume(*[await answered(house, each) for each in outcome.interrupts])
                print(events[-1])
                if not any(name.startswith("sign_in_") for name in house.model.told[0]["tools"]):
                    break
            print([message["content"] for message in house.messages if message["role"] == "tool"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
