"""What a newcomer types first, and what the bundled model answers, word for word.

    python -m tests.training.newcomers            # writes newcomer_answers.txt anew

The questions are asked with the tools of the page's demonstration agent; ` >> ` separates the turns of a conversation.
Calls are answered as the page would where a person agrees to everything; the weather and the time are made up here, so
that the answers do not change from day to day.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from agent_server.agents.demonstration import CONDITIONS, calculate, search
from agent_server.agents.running import failure
from agent_server.agents.server_tools import Tool, ToolFault, result_content
from training.demo_model.data_tools import PAGE_TOOLSETS, ToolDefinition, demo_tool
from training.demo_model.evaluate import Writer, parse_calls
from training.demo_model.render import END, Dialogue, Message

HERE = Path(__file__).parent
QUESTIONS = HERE / "newcomer_questions.txt"
ANSWERS = HERE / "newcomer_answers.txt"
MODEL = HERE.parents[1] / "agent_server" / "models" / "demo"
TOOLS: list[ToolDefinition] = [demo_tool(name) for name in PAGE_TOOLSETS[0]]
MOST_CALLS = 3


def conversations() -> list[list[str]]:
    """The questions, turn by turn."""
    return [line.split(" >> ") for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]


def weather(location: str) -> dict[str, Any]:
    """The weather of a place, the same for ever."""
    draw = hashlib.sha256(location.strip().lower().encode()).digest()
    conditions = CONDITIONS[draw[1] % len(CONDITIONS)]
    return {"city": location, "temperature": draw[0] % 36 - 6, "conditions": conditions, "humidity": 30 + draw[2] % 65}


def _run(tool: Tool, arguments: dict[str, Any]) -> Any:
    try:
        return tool.call(**tool.check(arguments))
    except ToolFault as fault:
        return failure(str(fault)).content


def result_of(call: dict[str, Any]) -> str:
    """What the server or the page answers to a call."""
    name, arguments = call["name"], call["arguments"]
    results: dict[str, Any] = {
        "get_weather": lambda: weather(arguments["location"]),
        "get_time": lambda: {"time": "12:34", "timezone": arguments["timezone"]},
        "calculate": lambda: _run(calculate, arguments),
        "search": lambda: _run(search, arguments),
        "send_email": lambda: {"status": "sent", "to": arguments["to"]},
        "write_document": lambda: "Document written.",
        "change_background": lambda: {"status": "success"},
        "generate_task_steps": lambda: {"accepted": True, "steps": arguments["steps"]},
    }
    try:
        content = result_content(results[name]())
    except KeyError as missing:
        content = failure(f"Invalid arguments: {missing.args[0]}: Field required").content
    return str(content)


def answered(writer: Writer, messages: list[Message]) -> list[str]:
    """Let the model end a turn; returns the lines of the transcript and adds the messages."""
    lines = []
    for _ in range(MOST_CALLS + 1):
        text = writer.write([writer.prompt(Dialogue("newcomer", [*messages, {}], TOOLS, True))])[0]
        said = text.removesuffix(END).split("</think>\n\n")[-1]
        calls = parse_calls(said)
        if not calls or None in calls:
            messages.append({"role": "assistant", "content": said})
            return [*lines, f"model: {said}" if text.endswith(END) else f"model: {said} [cut]"]
        made = [{"type": "function", "function": call} for call in calls]
        messages.append({"role": "assistant", "content": "", "tool_calls": made})
        for call in calls:
            content = result_of(call)
            lines.append(f"  call: {json.dumps(call, ensure_ascii=False)}\n  result: {content}")
            messages.append({"role": "tool", "content": content})
    return [*lines, "model: [called a tool again and again]"]


def transcript(writer: Writer, turns: list[str]) -> str:
    """One conversation as text."""
    messages: list[Message] = []
    lines = []
    for question in turns:
        messages.append({"role": "user", "content": question})
        lines += [f"person: {question}", *answered(writer, messages)]
    return "\n".join(lines)


def main() -> None:
    """Write the transcripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--output", type=Path, default=ANSWERS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    writer = Writer(given.model)
    text = "\n\n".join(transcript(writer, turns) for turns in conversations())
    given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
