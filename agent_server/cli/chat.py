"""`agent-server chat`: a terminal conversation over AG-UI that shows reasoning, calls and text as they arrive."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any

import httpx2
import typer
from rich.console import Console

from events import vocabulary as v
from events.message import Folder
from events.receive import receive

STYLES = {"reasoning": "dim italic", "call": "cyan", "result": "green", "error": "bold red"}


def chat(
    url: Annotated[str, typer.Argument(help="The server's address.")] = "http://localhost:8000",
    api_key: Annotated[
        str, typer.Option(envvar="AGENT_SERVER_API_KEY", help="API key, if the server requires one.")
    ] = "",
    agent: Annotated[str, typer.Option(help="Which agent to talk to.")] = "default",
    thinking: Annotated[bool, typer.Option(help="Let the model think visibly.")] = True,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
) -> None:
    """Talk to a running server. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    console = Console(highlight=False)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    props: dict[str, object] = {"enable_thinking": thinking}
    if temperature is not None:
        props["temperature"] = temperature
    session = ChatSession(console, props)
    timeout = httpx2.Timeout(10, read=None)
    with httpx2.Client(base_url=url, headers=headers, timeout=timeout) as client:
        path = "/agui" if agent == "default" else f"/agui/{agent}"
        while line := _ask(console, "[bold]> [/]"):
            try:
                session.turn(client, path, line)
            except httpx2.HTTPError as error:
                console.print(f"Cannot reach {url}: {error}", style=STYLES["error"], markup=False)
                raise typer.Exit(1) from error


def _ask(console: Console, prompt: str) -> str:
    try:
        return console.input(prompt).strip()
    except (EOFError, KeyboardInterrupt):
        return ""


class ChatSession:
    """The messages and the state of a conversation, kept between runs as in any AG-UI client."""

    def __init__(self, console: Console, props: dict[str, object]) -> None:
        self.console = console
        self.props = props
        self.thread_id = str(uuid.uuid4())
        self.messages: list[dict[str, object]] = []
        self.state: object = {}

    def turn(self, client: httpx2.Client, path: str, text: str) -> None:
        """Send a message and show the answer. If the run stops with interrupts, ask the user and resume it."""
        self.messages.append({"id": str(uuid.uuid4()), "role": "user", "content": text})
        resume: list[dict[str, object]] | None = None
        while True:
            folder = self.run(client, path, resume)
            self.messages, self.state = folder.messages, folder.state
            if not folder.interrupts:
                return
            resume = [self.decide(interrupt) for interrupt in folder.interrupts]

    def run(self, client: httpx2.Client, path: str, resume: list[dict[str, Any]] | None) -> Folder:
        body = {
            "threadId": self.thread_id, "runId": str(uuid.uuid4()), "protocolVersion": v.PROTOCOL_VERSION,
            "state": self.state, "messages": [m for m in self.messages if m["role"] != "activity"],
            "tools": [], "context": [], "forwardedProps": self.props,
        }  # fmt: skip
        if resume is not None:
            body["resume"] = resume
        folder = Folder(self.messages, self.state)
        with client.stream("POST", path, json=body, headers={"accept": "text/event-stream"}) as response:
            if response.status_code != 200:
                answer = response.read()
                try:
                    fault = str(json.loads(answer)["error"]["message"])
                except (ValueError, KeyError, TypeError):
                    fault = answer.decode("utf-8", "replace")[:500]
                self.console.print(fault, style=STYLES["error"], markup=False)
                return folder
            try:
                for line in response.iter_lines():
                    if not line.startswith("data:"):
                        continue
                    event, _ = receive(json.loads(line[5:]))
                    if event is not None:
                        folder.add(event)
                        self.show(event)
            except KeyboardInterrupt:
                self.console.print("\n(stopped)", style="dim")
        return folder

    def decide(self, interrupt: v.Interrupt) -> dict[str, object]:
        """Ask the user to approve. Any answer but "y" or "yes" counts as a refusal."""
        question = interrupt.message or f"{interrupt.reason}: continue?"
        self.console.print(question, style="bold yellow", markup=False)
        approved = _ask(self.console, "approve? [y/N] ").lower() in ("y", "yes")
        return {"interruptId": interrupt.id, "status": "resolved", "payload": {"approved": approved}}

    def show(self, event: v.Event) -> None:
        match event:
            case v.ReasoningMessageContent(delta=delta):
                self.console.print(delta, end="", style=STYLES["reasoning"], markup=False)
            case v.TextMessageContent(delta=delta):
                self.console.print(delta, end="", markup=False)
            case v.ToolCallStart(tool_call_name=name):
                self.console.print(f"{name} ", end="", style=STYLES["call"], markup=False)
            case v.ToolCallArgs(delta=delta):
                self.console.print(delta, end="", style=STYLES["call"], markup=False)
            case v.ReasoningMessageEnd() | v.TextMessageEnd() | v.ToolCallEnd():
                self.console.print()
            case v.ToolCallResult(content=content):
                text = content if isinstance(content, str) else json.dumps(content)
                self.console.print(f"= {text}", style=STYLES["result"], markup=False)
            case v.RunError(message=message):
                self.console.print(message, style=STYLES["error"], markup=False)
