"""One gateway as a process of its own: `python -m tests.gateways.gateway STORE REDIS`; prints its URL.

The model is scripted by what the last user message says: "count N DELAY" counts to N, a word every DELAY seconds,
"send" calls a tool that waits for a person, "pay FILE" one that does so and then adds a line to the file, "look FILE" one
that adds a line to the file and then waits until the file is larger than that, "charge FILE" one that adds a line and
may not be made twice, anything else is answered at once. Without REDIS ("") it is a server alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agent_server.agents import Agent, tool
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.agents.models import call
from tests.server import scripted, serving

LEASE = 3.0
CHARGED = "It was charged, and here is a receipt: " + " ".join(map(str, range(1, 41)))


@tool(requires_approval=True)
def send_email(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def add_line(file: str, line: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")


def lines_of(file: str) -> int:
    return Path(file).read_text().count("\n")


@tool(requires_approval=True)
def pay(file: str) -> str:
    """Pay."""
    add_line(file, "paid")
    return "paid"


@tool(idempotent=True)
async def look(file: str) -> str:
    """Look for long. It may be done again."""
    add_line(file, "looked")
    while lines_of(file) < 2:
        await asyncio.sleep(0.05)
    return "seen"


@tool
async def charge(file: str) -> str:
    """Charge. It may not be done twice."""
    add_line(file, "charged")
    await asyncio.sleep(0.03)
    return "charged"


def script_of(prompt: str) -> Script:
    """What the model says to a prompt in the bundled model's template."""
    turns = prompt.split("<|im_start|>")
    last = next((turn for turn in reversed(turns) if turn.startswith(("user", "tool"))), "")
    words = last.replace("<|im_end|>", " ").split()
    if "<tool_response>" in words:
        if "charged" in words or "repeated." in words:
            return Script(text=CHARGED, delay=0.01)
        return Script(text="It is sent." if "sent" in words else "It is done.")
    if words[1:2] == ["count"]:
        number, delay = int(words[2]), float(words[3])
        return Script(text=" ".join(map(str, range(1, number + 1))), delay=delay)
    if words[1:2] == ["send"]:
        return Script(text=call("send_email", to="ada@example.org"))
    if words[1:2] in (["pay"], ["look"], ["charge"]):
        return Script(text=call(words[1], file=words[2]))
    return Script(text="Yes.")


async def main(store: str, redis: str, changes: dict[str, Any]) -> None:
    tokenizer = load_model_files(BUNDLED).tokenizer

    def scripts(request: GenerationRequest) -> Script:
        return script_of(tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False))

    agents = [Agent(name="default", tools=[send_email, pay, look, charge])]
    async with serving(
        scripted(scripts),
        agents=agents,
        store_url=store,
        **({"redis_url": redis} if redis else {}),
        **{"gateway_lease": LEASE, "grace": 1.0, **changes},
    ) as running:
        print(running.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until the test closes it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
