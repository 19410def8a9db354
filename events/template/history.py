"""AG-UI messages as turns: flat text, arguments as objects, reasoning with the answer that followed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import partial_json_parser  # type: ignore[import-untyped, unused-ignore]
from ag_ui.core import Message as InputMessage

from events.formats.output_format import OutputFormat
from events.template.media_marks import Marks

NOUNS = {"image": "images", "audio": "sounds"}
UNSEEN = {
    "image": "[An image is here, which you cannot see.]",
    "audio": "[A sound is here, which you cannot hear.]",
    "video": "[A video is here, which you cannot see.]",
    "document": "[A document is here, which could not be read.]",
}
"""The text in place of a part that the model does not support, by the part's type."""


class HistoryCall(msgspec.Struct, frozen=True):
    """A call in the history. arguments: always an object, even if the history's text is not one."""

    id: str
    name: str
    arguments: dict[str, Any]


class HistoryTurn(msgspec.Struct, kw_only=True):
    """One message while the conversation is arranged. role: system, user, assistant or tool. reasoning and calls are
    for assistants, call_id and name for tools."""

    role: str
    text: str = ""
    reasoning: str = ""
    calls: list[HistoryCall] = msgspec.field(default_factory=list)
    call_id: str = ""
    name: str = ""


def read_history(
    messages: Sequence[InputMessage], output_format: OutputFormat, warnings: list[str], marks: Marks | None = None
) -> list[HistoryTurn]:
    """Return one turn for each message with content; reasoning is added to the assistant message that follows it.
    marks: collects the media of users and tools that the model supports."""
    turns: list[HistoryTurn] = []
    thoughts: list[str] = []
    described = output_format.reasoning
    start = described.start[0].strip() if described and described.start else ""
    end = described.end[0].strip() if described and start else ""
    for message in messages:
        if message.role == "reasoning":
            thoughts.append(message.content)
            continue
        if message.role in ("system", "developer"):
            turn = HistoryTurn(role="system", text=flatten(message.content, warnings))
        elif message.role == "user":
            turn = HistoryTurn(role="user", text=flatten(message.content, warnings, marks))
        elif message.role == "tool":
            result = flatten(message.content, warnings, marks)
            error = getattr(message, "error", None)
            result = result or (f"Error: {error}" if error else "")
            turn = HistoryTurn(role="tool", text=result, call_id=message.tool_call_id)
        elif message.role == "assistant":
            calls: list[HistoryCall] = []
            for call in message.tool_calls or ():
                arguments, is_object = read_arguments(call.function.arguments)
                if not is_object:
                    warnings.append(
                        f"the arguments of call {call.id} in the history are no JSON object and were mended"
                    )
                calls.append(HistoryCall(call.id, call.function.name, arguments))
            turn = HistoryTurn(role="assistant", text=flatten(message.content, warnings), calls=calls)
            turn.reasoning = "\n".join(thought for thought in thoughts if thought)
            body = turn.text.lstrip()
            if not turn.reasoning and start and body.startswith(start) and end in body:
                # Clients send reasoning back in the content if they received it there.
                thought, text = body[len(start) :].split(end, 1)
                turn.reasoning, turn.text = thought.strip(), text.lstrip()
        else:  # activities are for the front end
            continue
        thoughts = []
        turns.append(turn)
    if any(thoughts):  # reasoning that the model continues
        turns.append(HistoryTurn(role="assistant", reasoning="\n".join(thoughts)))
    return turns


def flatten(content: Any, warnings: list[str], marks: Marks | None = None) -> str:
    """Return a message's text: its text parts on separate lines, and marks for its media. A note replaces media that
    the model does not support."""
    if content is None or isinstance(content, str):
        return content or ""
    text, below = "", False
    for part in content:
        if part.type == "text":
            text += f"\n{part.text}" if below else part.text
            below = True
        elif marks is not None and part.type in marks.takes:
            text += marks.mark(part)
            below = False
        else:
            supported = (
                " and ".join(["text", *(NOUNS[kind] for kind in sorted(marks.takes))]) if marks is not None else "text"
            )
            warnings.append(f"a part of type {part.type} was left out: this model reads {supported} only")
            text += f"\n{UNSEEN[part.type]}" if below else UNSEEN[part.type]
            below = True
    return text


def read_arguments(text: str) -> tuple[dict[str, object], bool]:
    """Return (arguments, whether the text was a JSON object). A text that was cut off is completed; any other text
    becomes the value of the key "input", so that nothing is lost and the next turn never fails."""
    try:
        value = json.loads(text or "{}")
        return (value, True) if isinstance(value, dict) else ({"input": value}, False)
    except (ValueError, RecursionError):
        pass
    try:
        value = partial_json_parser.loads(text) if text.lstrip().startswith("{") else None
        json.dumps(value, allow_nan=False)
    except Exception:  # the library raises errors of several unrelated kinds
        value = None
    return (value, False) if isinstance(value, dict) else ({"input": text}, False)
