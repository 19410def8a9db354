"""Dialogues as text, cut into segments that are learned and segments that are only read.

The text is what `chat_template.jinja` produces for the same messages; a test compares them.
"""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from training.demo_model.data_tools import ToolDefinition, argument_types, tool_name

Message = dict[str, Any]
SYSTEM_LIMIT = 300
START, END = "<|im_start|>", "<|im_end|>"


class Segment(NamedTuple):
    """A piece of a dialogue; the model learns to write the targets.

    past: an answer of an earlier turn. The template leaves its thought out, so that its first token, which would tell
    the model to leave it out as well, is only read.
    """

    text: str
    target: bool
    past: bool = False


@dataclass
class Dialogue:
    """Messages whose last one is the expected answer, with the tools and the thinking switch.

    `carried` lists the values that the expected answer has to contain, `forbidden` those that it must not contain.
    `packed`: the turns stand on their own, and every answer is rendered and learned as the last one is, but that one
    whose message says `shown` ends after that many characters, which says what the question means.
    """

    kind: str
    messages: list[Message]
    tools: list[ToolDefinition]
    thinking: bool
    carried: tuple[str, ...] = field(default=())
    forbidden: tuple[str, ...] = field(default=())
    packed: bool = False


def render_tool(tool: ToolDefinition) -> str:
    """Render a tool as its name and its argument names and types."""
    return json.dumps({"name": tool_name(tool), "arguments": argument_types(tool)})


def render_system(text: str, tools: list[ToolDefinition]) -> str:
    """Render the system turn, which is left out when it would be empty."""
    parts = [text[:SYSTEM_LIMIT]] if text else []
    if tools:
        listed = "\n".join(render_tool(tool) for tool in tools)
        parts.append(f"# Tools\n<tools>\n{listed}\n</tools>")
    body = "\n\n".join(parts)
    return f"{START}system\n{body}{END}\n" if body else ""


def render_call(call: Message) -> str:
    """Render one tool call."""
    function = call["function"]
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def render_output(message: Message) -> str:
    """Render an assistant's text and calls, without the thought."""
    calls = [render_call(call) for call in message.get("tool_calls", ())]
    return "\n".join(part for part in (message.get("content") or "", *calls) if part)


def render_current(message: Message, thinking: bool) -> list[Segment]:
    """Render an assistant message of the current turn, which opens with a thought."""
    body = render_output(message) + END
    if thinking and message.get("reasoning_content"):
        thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n"
        return [Segment(f"{START}assistant\n", False), Segment(thought + body, True)]
    opening = f"{START}assistant\n<think>\n\n</think>\n\n"
    return [Segment(opening, False), Segment(body, not thinking)]


def render_cut(message: Message, thinking: bool) -> list[Segment]:
    """Render the beginning of an answer up to a word's end; its early end is not learned."""
    beginning = message["content"][: message["shown"]].rpartition(" ")[0] + " "
    opening, learned = render_current({**message, "content": beginning}, thinking)
    return [opening, learned._replace(text=learned.text.removesuffix(END)), Segment(f"{END}\n", False)]


def render_results(messages: list[Message]) -> str:
    """Render neighbouring tool results as one user turn."""
    blocks = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in messages]
    return f"{START}user\n" + "\n".join(blocks) + f"{END}\n"


def _last_user(messages: list[Message]) -> int:
    return max(index for index, message in enumerate(messages) if message["role"] == "user")


def _results_at(messages: list[Message], start: int) -> list[Message]:
    stop = start
    while stop < len(messages) and messages[stop]["role"] == "tool":
        stop += 1
    return messages[start:stop]


def render(dialogue: Dialogue) -> list[Segment]:
    """Render a whole dialogue, the expected answer included."""
    messages = dialogue.messages
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    segments = [Segment(render_system(system, dialogue.tools), False)]
    last_user = _last_user(messages)
    for index, message in enumerate(messages):
        if message["role"] == "user":
            segments.append(Segment(f"{START}user\n{message['content']}{END}\n", False))
        elif message["role"] == "tool" and messages[index - 1]["role"] != "tool":
            segments.append(Segment(render_results(_results_at(messages, index)), False))
        elif message["role"] == "assistant" and "shown" in message:
            segments += render_cut(message, dialogue.thinking)
        elif message["role"] == "assistant" and (dialogue.packed or index > last_user):
            segments += [*render_current(message, dialogue.thinking), Segment("\n", False)]
        elif message["role"] == "assistant":
            segments.append(Segment(f"{START}assistant\n", False))
            segments += [Segment(render_output(message) + END, True, past=True), Segment("\n", False)]
    return [segment for segment in segments if segment.text]


def prompt_of(dialogue: Dialogue) -> str:
    """Render everything before the expected answer."""
    opening = "" if dialogue.thinking else "<think>\n\n</think>\n\n"
    shown = Dialogue(dialogue.kind, dialogue.messages[:-1], dialogue.tools, dialogue.thinking)
    text = "".join(segment.text for segment in render(shown))
    return f"{text}{START}assistant\n{opening}"
