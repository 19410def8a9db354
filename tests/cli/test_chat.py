"""The terminal client against a real server."""

from __future__ import annotations

import asyncio
import io

import httpx
from rich.console import Console

from agent_server.agents import Agent, tool
from agent_server.cli.chat import ChatSession
from tests.server import scripted, serving

CALL = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "shout", "arguments": {"word": "hi"}}\n</tool_call>'


@tool(requires_approval=True)
def shout(word: str) -> str:
    """Say a word loudly."""
    return word.upper()


def talk(url: str, *lines: str, answers: str = "") -> tuple[str, ChatSession]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=False, width=200)
    console.input = lambda prompt="": answers  # type: ignore[method-assign, assignment]
    conversation = ChatSession(console, {})
    with httpx.Client(base_url=url, timeout=30) as client:
        for line in lines:
            conversation.turn(client, "/agui", line)
    return output.getvalue(), conversation


async def test_it_shows_what_comes_and_keeps_the_conversation():
    async with serving(scripted("<think>\nWell.\n</think>\n\nHello.")) as running:
        shown, conversation = await asyncio.to_thread(talk, running.url, "Hi", "And?")
    assert shown == "Well.\nHello.\nWell.\nHello.\n"
    assert [message["role"] for message in conversation.messages].count("assistant") == 2


async def test_an_approval_is_asked_for_and_a_yes_runs_the_tool():
    engine = scripted([*map(_script, (CALL, "Done."))])
    async with serving(engine, agents=[Agent(name="default", tools=[shout])]) as running:
        shown, _ = await asyncio.to_thread(talk, running.url, "Go", answers="y")
    assert "shout" in shown and "= HI" in shown and "Done." in shown


async def test_an_error_is_a_sentence():
    async with serving(scripted("Hello."), api_keys=("k",)) as running:
        shown, _ = await asyncio.to_thread(talk, running.url, "Hi")
    assert "API key" in shown


def _script(text: str):
    from agent_server.engines.scripted import Script

    return Script(text=text)
