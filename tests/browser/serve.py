"""The server that the browser tests talk to: everything real but the model, whose words are scripted here.

    python -m tests.browser.serve --port 0

Prints the address once it listens. What is scripted depends on the last thing that a person said, so that a test
reads like a conversation; every answer is in the bundled model's own format and tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import BaseModel

from agent_server.agents import Agent, Compaction, McpServer, ToolContext, UserConsent, tool
from agent_server.agents.demonstration import demonstration_agents
from agent_server.agents.mcp import sessions
from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.http.app import create_app
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from agent_server.settings import Settings
from tests.dictated import engine_class

ROOT = Path(__file__).parents[2]
LONG = " ".join(f"Sentence {number} of a long answer." for number in range(1, 400))
LIST = "I can do a few things:\n\n1. Look up the **weather**\n2. Calculate\n\n```python\nprint(3)\n```\n\nAsk me."
OWLS = (
    "# Owls\n\nOwls hunt at **night**. Their feathers are soft, so they fly in silence.\n\n- Large eyes\n- Sharp ears"
)
TABLE = """
| Internationalisation | Telecommunication | Responsibilities | Characteristically |
|---|---|---|---|
| Incomprehensibilities | Counterrevolutionary | Uncharacteristically | Electroencephalograph |

- [x] Booked
- [ ] Packed
"""
CODE = """
```py
def area(radius):  # of a circle
    return 3.14 * radius**2
```

```brainfuck
++>
```
"""
FORMULA = r"The area is \(\pi r^2 日本\), from $5 to $10, and $x$ is\n\n\[ \frac{1}{2} \]"
STEPS = [{"description": each, "status": "enabled"} for each in ("Book a train", "Find a hotel", "Visit the museum")]
EMAIL = {"to": "anna@example.com", "subject": "Lunch", "body": "Shall we have lunch at noon?"}


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def thought(text: str, then: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{then}"


RULES: tuple[tuple[str, str], ...] = (
    (r"weather", thought("The user asks for the weather.", call("get_weather", location="Oslo"))),
    (r"12\*7", call("calculate", expression="12*7")),
    (r"trip", call("generate_task_steps", steps=STEPS)),
    (r"reserve", call("reserve")),
    (r"sign me in", call("sign_in_far")),
    (r"secret", call("secret")),
    (r"background", call("change_background", background="teal")),
    (r"email", call("send_email", **EMAIL)),
    (r"document", call("write_document", document=OWLS)),
    (r"search", call("search", query="interrupts")),
    (r"choose a colour", call("choose_colour")),
    (r"add salt", call("add_ingredient", name="salt")),
    (r"progress", call("count_slowly")),
    (r"show me a table", TABLE),
    (r"show me code", CODE),
    (r"show me a formula", FORMULA),
    (r"remember", "I keep it in mind."),
    (r"long", LONG),
    (r"break", "This will not end well, because the engine"),
    (r"can you do", thought("A question about me.", LIST)),
    (r"hello|hi\b", thought("A greeting.", "Hello! How can I help?")),
)


def answer(prompt: str) -> Script:
    """What the model says after this prompt."""
    turns = prompt.split("<|im_start|>")
    last = next((turn for turn in reversed(turns) if turn.startswith(("user", "tool"))), "")
    responses = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", last, re.DOTALL)
    if responses:
        return Script(text=f"The tool said {responses[-1]}", first_delay=0.03, delay=0.01)
    asked = last.lower()
    text = next((text for pattern, text in RULES if re.search(pattern, asked)), "I have no script for that.")
    if "break" in asked:
        return Script(
            text=text,
            delay=0.01,
            fault=Fault(action="error", after=8, kind="connection", message="The engine was lost in mid-answer."),
        )
    delay = 0.4 if "very slow" in asked else 0.08 if re.search("long|slow", asked) else 0.012
    return Script(text=text, first_delay=0.05, delay=delay)


class Recipe(BaseModel):
    title: str = "Soup"
    ingredients: list[str] = ["water"]


@tool
def add_ingredient(name: str, context: ToolContext) -> str:
    """Add an ingredient to the recipe."""
    context.state["ingredients"] = [*context.state.get("ingredients", []), name]
    return f"{name} added"


@tool
async def choose_colour(context: ToolContext) -> str:
    """Ask the person for a colour."""
    chosen = context.ask(
        "Which colour?",
        {
            "type": "object",
            "properties": {
                "colour": {"type": "string", "enum": ["red", "green"]},
                "shade": {"type": "string", "maxLength": 5},
            },
            "required": ["colour"],
        },
    )
    return f"The person chose {chosen['colour']}"


@tool
async def count_slowly() -> Any:
    """Count, and say how far."""
    for number in (1, 2, 3):
        yield {"counted": number}
        await asyncio.sleep(0.1)


def agents() -> tuple[Agent, ...]:
    forgetful = Agent(name="forgetful", compaction=Compaction(mode="drop", at=0.1, keep=0.02))
    cook = Agent(
        name="cook",
        description="Shares a recipe with the page.",
        state=Recipe,
        tools=[add_ingredient, choose_colour, count_slowly],
    )
    return (*demonstration_agents(), cook, forgetful)


def notes() -> Agent:
    """An agent whose MCP server has prompts and resources."""
    command = (sys.executable, "-m", "tests.agents.notes_server")
    sessions.WAIT_SECONDS = 60.0  # a busy machine takes its time to start a server
    return Agent(name="notes", mcp_servers=[McpServer(name="notes", command=command, cwd=str(ROOT))])


def asking(far: str) -> Agent:
    """An agent whose MCP servers ask: one that starts with this server, and one at `far`, where users sign in."""
    command = (sys.executable, "-m", "tests.agents.eliciting_server")
    sessions.WAIT_SECONDS = 60.0
    servers = [McpServer(name="box", command=command, cwd=str(ROOT))]
    if far:
        servers.append(McpServer(name="far", url=far, oauth=UserConsent()))
    return Agent(name="asking", mcp_servers=servers)


def graphs() -> list[Any]:
    """An agent of another framework, which takes a second to import."""
    from tests.agents.guests.graphs import graph

    return [graph()]


def hearing(folder: Path) -> str:
    """A tiny model of Qwen2-Audio's kind, which takes some seconds to import and make; its words mean nothing."""
    from tests.generation.multimodal.hearing_models import save_hearing_chat

    save_hearing_chat(folder, context=8192, max_new_tokens=8)
    return str(folder)


def engine() -> ScriptedEngine:
    tokenizer = load_model_files(str(BUNDLED)).tokenizer

    def script(request: GenerationRequest) -> Script:
        return answer(tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False))

    return engine_class()(
        script, vocabulary=TokenizerVocabulary(tokenizer), model="agent-server-demo", context_length=4096
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", action="append", default=[])
    parser.add_argument("--origin", action="append", default=[])
    parser.add_argument("--store", default="memory")
    parser.add_argument("--max-runs", type=int, default=256)
    parser.add_argument("--graph", action="store_true", help="a LangGraph graph beside the agents")
    parser.add_argument("--notes", action="store_true", help="an agent with an MCP server beside the agents")
    parser.add_argument("--asking", action="store_true", help="an agent whose MCP server asks the user")
    parser.add_argument("--far", default="", help="the URL of one more MCP server of that agent, where users sign in")
    parser.add_argument("--bundled", action="store_true", help="the bundled model itself, in place of scripted words")
    parser.add_argument("--hearing", action="store_true", help="a tiny model that hears, in place of scripted words")
    given = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    socket = uvicorn.Config("", host="127.0.0.1", port=given.port).bind_socket()
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    settings = Settings(
        model=hearing(Path(folder.name)) if given.hearing else "",
        store_url=given.store,
        api_keys=tuple(given.key),
        cors_origins=tuple(given.origin),
        max_runs=given.max_runs,
        drain=0.2,
        public_url=url if given.far else "",
        encryption_keys=(base64.b64encode(b"k" * 32).decode(),) if given.far else (),
    )
    served = (
        *agents(),
        *(graphs() if given.graph else ()),
        *((notes(),) if given.notes else ()),
        *((asking(given.far),) if given.asking else ()),
    )
    app = (
        create_app(settings) if given.bundled or given.hearing else create_app(settings, agents=served, engine=engine())
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=given.port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    print(url, flush=True)
    asyncio.run(server.serve(sockets=[socket]))


if __name__ == "__main__":
    main()
