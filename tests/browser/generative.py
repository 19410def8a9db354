"""The server of the generative UI tests: an agent with an MCP app, and one that writes A2UI surfaces.

    python -m tests.browser.generative --origin http://127.0.0.1:3000

Prints the address once it listens. The model's words are scripted; its context is large enough for a page's catalog.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable

import uvicorn

from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp import sessions
from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Fault, Script
from agent_server.http.app import create_app
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from agent_server.settings import Settings
from tests.agents.generative_ui.pages import FORM
from tests.browser.serve import call
from tests.dictated import engine_class

CONTEXT = 65536
FLIGHTS = [{"title": f"Flight {number}"} for number in range(1, 4)]
FLIGHT_LIST = [
    {"id": "root", "component": "Column", "children": {"componentId": "flight", "path": "/items"}},
    {"id": "flight", "component": "Text", "text": {"path": "title"}},
]


def answer(prompt: str, tokens_of: Callable[[str], int]) -> Script:
    """What the model says after this prompt. The call for flights never ends: what is shown of it stands before its
    end."""
    last = next(turn for turn in reversed(prompt.split("<|im_start|>")) if turn.startswith(("user", "tool")))
    if (action := re.search(r'User performed action "book".*?"name":"(.*?)"', last)) is not None:
        return Script(text=f"Booked for {action[1]}.")
    if "<tool_response>" in last:
        return Script(text="There it is.")
    asked = last.lower()
    if "weather" in asked:
        return Script(text=call("weather", city="Oslo"))
    if "form" in asked:
        return Script(text=call("render_a2ui", surfaceId="form", components=FORM, data={"form": {"name": "Ada"}}))
    if "flights" in asked:
        written = call("render_a2ui", surfaceId="flights", components=FLIGHT_LIST, data={"items": FLIGHTS})
        begun = written[: written.index("Flight 3")]
        return Script(text=written, fault=Fault(action="hang", after=tokens_of(begun)))
    return Script(text="I have no script for that.")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--origin", action="append", default=[])
    given = parser.parse_args()
    tokenizer = load_model_files(str(BUNDLED)).tokenizer

    def script(request: GenerationRequest) -> Script:
        prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
        return answer(prompt, lambda text: len(tokenizer.encode(text).ids))

    engine = engine_class()(
        script, vocabulary=TokenizerVocabulary(tokenizer), model="agent-server-demo", context_length=CONTEXT
    )
    sessions.WAIT_SECONDS = 60.0  # a busy machine takes its time to start a server
    sky = McpServer(name="sky", command=(sys.executable, "-m", "tests.agents.app_server"))
    agents = [Agent(name="default", mcp_servers=[sky]), Agent(name="painter", a2ui=True)]
    settings = Settings(store_url="memory", cors_origins=tuple(given.origin), max_context=CONTEXT, drain=0.2)
    app = create_app(settings, agents=agents, engine=engine)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    socket = config.bind_socket()
    print(f"http://127.0.0.1:{socket.getsockname()[1]}", flush=True)
    asyncio.run(uvicorn.Server(config).serve(sockets=[socket]))


if __name__ == "__main__":
    main()
