"""`agent-server chat`: a terminal conversation over AG-UI that shows reasoning, calls and text as they come."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

Message = dict[str, Any]
STYLES = {"reasoning": "dim italic", "call": "cyan", "result": "green", "error": "bold red"}


def chat(
    url: Annotated[str, typer.Argument(help="The server's address.")] = "http://localhost:8000",
    api_key: Annotated[str, typer.Option(envvar="AGENT_SERVER_API_KEY", help="API key, if the server asks.")] = "",
    agent: Annotated[str, typer.Option(help="Which agent to talk to.")] = "default",
    thinking: Annotated[bool, typer.Option(help="Let the model think visibly.")] = True,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
) -> None:
    """Talk to a running server. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    console = Console(highlight=False)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    props: dict[str, Any] = {"enable_thinking": thinking}
    if temperature is not None:
        props["temperature"] = temperature
    path = "/agui" if agent == "default" else f"/agui/{agent}"
    conversation = Conversation(console, props)
    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(10, read=None)) as client:
        while line := _ask(console):
            conversation.say(line)
            try:
                conversation.answer(client, path)
            except httpx.HTTPError as error:
                console.print(f"Cannot reach {url}: {error}", style=STYLES["error"])
                raise typer.Exit(1) from error


def _ask(console: Console) -> str:
    try:
        return console.input("[bold]> [/]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


class Conversation:
    """The messages so far, and how each event is shown."""

    def __init__(self, console: Console, props: dict[str, Any]) -> None:
        self.console = console
        self.props = props
        self.thread_id = str(uuid.uuid4())
        self.messages: list[Message] = []
        self._open: dict[str, Message] = {}

    def say(self, text: str) -> None:
        self.messages.append({"id": str(uuid.uuid4()), "role": "user", "content": text})

    def answer(self, client: httpx.Client, path: str) -> None:
        """One run: prints what comes and keeps the messages for the next turn."""
        body = {
            "threadId": self.thread_id, "runId": str(uuid.uuid4()), "protocolVersion": "1.0", "state": {},
            "messages": self.messages, "tools": [], "context": [], "forwardedProps": self.props,
        }  # fmt: skip
        with client.stream("POST", path, json=body, headers={"accept": "text/event-stream"}) as response:
            if response.status_code != 200:
                self.console.print(_error_text(response.read()), style=STYLES["error"])
                return
            try:
                for event in _events(response.iter_lines()):
                    self.show(event)
            except KeyboardInterrupt:
                self.console.print("\n(stopped)", style="dim")

    def show(self, event: dict[str, Any]) -> None:
        handler = getattr(self, "_on_" + event["type"].lower(), None)
        if handler is not None:
            handler(event)

    def _on_reasoning_message_content(self, event: dict[str, Any]) -> None:
        self.console.print(event["delta"], end="", style=STYLES["reasoning"], markup=False)

    def _on_reasoning_message_end(self, event: dict[str, Any]) -> None:
        self.console.print()

    def _on_text_message_start(self, event: dict[str, Any]) -> None:
        message = {"id": event["messageId"], "role": "assistant", "content": ""}
        self._open[event["messageId"]] = message
        self.messages.append(message)

    def _on_text_message_content(self, event: dict[str, Any]) -> None:
        self._open[event["messageId"]]["content"] += event["delta"]
        self.console.print(event["delta"], end="", markup=False)

    def _on_text_message_end(self, event: dict[str, Any]) -> None:
        self.console.print()

    def _on_tool_call_start(self, event: dict[str, Any]) -> None:
        self.console.print(f"{event['toolCallName']} ", end="", style=STYLES["call"], markup=False)

    def _on_tool_call_args(self, event: dict[str, Any]) -> None:
        self.console.print(event["delta"], end="", style=STYLES["call"], markup=False)

    def _on_tool_call_end(self, event: dict[str, Any]) -> None:
        self.console.print()

    def _on_tool_call_result(self, event: dict[str, Any]) -> None:
        content = event["content"]
        text = content if isinstance(content, str) else json.dumps(content)
        self.console.print(f"= {text}", style=STYLES["result"], markup=False)

    def _on_messages_snapshot(self, event: dict[str, Any]) -> None:
        self.messages = list(event["messages"])
        self._open = {message["id"]: message for message in self.messages}

    def _on_run_error(self, event: dict[str, Any]) -> None:
        self.console.print(event["message"], style=STYLES["error"], markup=False)


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data:"):
            yield json.loads(line[5:])


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:500]
