"""Convert AG-UI messages to the messages of a chat template, in the form that its analysis requires.

No history of a client may make a template fail: content that a template does not support in one position is moved to
another. The steps are: read the history (`events.template.history`), arrange the turns, shape them as dictionaries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any

import msgspec
from ag_ui.core import ContentPart, Context, Tool
from ag_ui.core import Message as InputMessage

from events.formats.output_format import OutputFormat
from events.template.declarations import tool_declaration
from events.template.environment import Message
from events.template.history import HistoryCall, HistoryTurn, read_history
from events.template.media_marks import Marks
from events.template.probe import Capabilities, declaring, no_text, with_reasoning
from events.template.writer import WrittenCall, write_calls

NO_RESULT = "(no result)"
FILLER = "..."
TEXT_LEFT_OUT = "text beside the calls of an earlier answer was left out: the chat template has no place for both"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class PromptMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a template.

    final_reasoning, final_text: those of the last message if it is the assistant's, even if the template does not
    support one of them. warnings: what was left out or repaired, for a person. media: the image and sound parts in the
    order of the messages.
    """

    messages: list[Message]
    tools: list[Message] | None = None
    final_reasoning: str = ""
    final_text: str = ""
    warnings: tuple[str, ...] = ()
    media: tuple[ContentPart, ...] = ()


def build_conversation(
    messages: Sequence[InputMessage],
    *,
    capabilities: Capabilities,
    output_format: OutputFormat,
    tools: Sequence[Tool] = (),
    context: Sequence[Context] = (),
    instructions: str | None = None,
    takes: Collection[str] = (),
    result: str = "",
    nonce: str = "",
) -> PromptMessages:
    """Convert messages, context entries and instructions to the template's form. Does not raise for any history.

    takes: the kinds of media that the model supports, of "image" and "audio". result: the text of a user message with a
    call's result, if the family was trained with that; {name} and {text} are replaced by the function and the result.
    nonce: random letters and digits, by which media are told from text that looks like one of their marks.
    """
    warnings: list[str] = []
    marks = None
    contents = [message.content for message in messages if message.role in ("user", "tool")]
    if any(part.type in takes for content in contents if isinstance(content, list) for part in content):
        marks = Marks(takes, nonce)
    preamble = [instructions] if instructions else []
    if context:
        entries = [f"{entry.description}: {entry.value}" if entry.description else entry.value for entry in context]
        preamble.append("Context:\n" + "\n".join(f"- {entry}" for entry in entries))

    turns = read_history(messages, output_format, warnings, marks)
    turns = _pair_results(turns)
    turns = _gather_system(turns, capabilities, preamble)
    if capabilities.needs_user and not any(turn.role == "user" for turn in turns):
        turns.insert(1 if turns and turns[0].role == "system" else 0, HistoryTurn(role="user", text=FILLER))
    turns = _split_calls(turns, capabilities)
    turns = _write_calls_as_text(turns, capabilities, output_format, result)
    turns = _merge(turns, capabilities)
    turns = _alternate(turns) if capabilities.alternation else turns

    shaped, declared = _shape(turns, capabilities, warnings), [tool_declaration(tool) for tool in tools]
    if capabilities.tools_in_system and declared:
        if not shaped or shaped[0]["role"] != "system":
            shaped.insert(0, {"role": "system", "content": ""})
        functions = [tool["function"] for tool in declared]
        shaped[0] = {**shaped[0], "tools": json.dumps(functions, ensure_ascii=False)}
        declared = []
    if capabilities.tools_role:
        shaped.insert(bool(shaped and shaped[0]["role"] == "system"), declaring(capabilities.tools_role, declared))
        declared = []
    shaped, media = (shaped, ()) if marks is None else marks.unmark(shaped)
    last = HistoryTurn(role="assistant")
    if turns and turns[-1].role == "assistant" and not turns[-1].calls:
        last = turns[-1]
    return PromptMessages(
        messages=shaped,
        tools=declared or None,
        final_reasoning=last.reasoning,
        final_text=last.text,
        warnings=tuple(dict.fromkeys(warnings)),
        media=media,
    )


# --- arrange


def _pair_results(turns: list[HistoryTurn]) -> list[HistoryTurn]:
    """Put results after their calls, in the order of the calls. A call without a result gets an empty one unless it is
    at the end of the conversation; a result without a call becomes a user message."""
    arranged: list[HistoryTurn] = []
    index = 0
    while index < len(turns):
        turn = turns[index]
        index += 1
        if turn.role == "tool":
            arranged.append(HistoryTurn(role="user", text=f"Result of a tool: {turn.text}"))
            continue
        arranged.append(turn)
        if not turn.calls:
            continue
        by_id: dict[str, HistoryTurn] = {}
        strays: list[HistoryTurn] = []
        call_ids = {call.id for call in turn.calls}
        while index < len(turns) and turns[index].role == "tool":
            result = turns[index]
            index += 1
            if result.call_id in call_ids and result.call_id not in by_id:
                by_id[result.call_id] = result
            else:
                strays.append(HistoryTurn(role="user", text=f"Result of a tool: {result.text}"))
        at_end = index == len(turns) and not by_id and not strays
        for call in turn.calls:
            missing = None if at_end else HistoryTurn(role="tool", text=NO_RESULT, call_id=call.id)
            if (answer := by_id.get(call.id, missing)) is not None:
                answer.name = call.name
                arranged.append(answer)
        arranged += strays
    return arranged


def _gather_system(turns: list[HistoryTurn], capabilities: Capabilities, preamble: Sequence[str]) -> list[HistoryTurn]:
    """Put the system text before the first answer into the first message, except messages that the template renders in
    their position; into the first user message if there is no system role.

    Coding agents add system messages to a conversation. If the template renders none in its position, one after an
    answer becomes a user message: in the first message it would change the beginning of the prompt, which is cached.
    """
    leading: list[str] = []
    rest: list[HistoryTurn] = []
    answered = False
    for turn in turns:
        answered = answered or turn.role == "assistant"
        if turn.role != "system" or (capabilities.system_anywhere and rest):
            rest.append(turn)
        elif answered:
            rest.append(HistoryTurn(role="user", text=turn.text))
        else:
            leading.append(turn.text)
    text = "\n\n".join(part for part in (*preamble, *leading) if part)
    if not text and not capabilities.needs_system:
        return rest
    if capabilities.system_role or capabilities.needs_system:
        return [HistoryTurn(role="system", text=text), *rest]
    for index, turn in enumerate(rest):
        if turn.role == "user":
            rest[index] = HistoryTurn(role="user", text=f"{text}\n\n{turn.text}" if turn.text else text)
            return rest
    return [HistoryTurn(role="user", text=text), *rest]


def _split_calls(turns: list[HistoryTurn], capabilities: Capabilities) -> list[HistoryTurn]:
    """Split calls into one message each, followed by its result, if the template renders only one call per message."""
    if capabilities.parallel_calls or not capabilities.tool_calls:
        return turns
    arranged: list[HistoryTurn] = []
    for index, turn in enumerate(turns):
        if turn.role == "tool" and any(turn is each for each in arranged):
            continue
        if len(turn.calls) < 2:
            arranged.append(turn)
            continue
        results = {later.call_id: later for later in takewhile(lambda each: each.role == "tool", turns[index + 1 :])}
        for position, call in enumerate(turn.calls):
            first = position == 0
            arranged.append(
                HistoryTurn(
                    role="assistant",
                    text=turn.text if first else "",
                    reasoning=turn.reasoning if first else "",
                    calls=[call],
                )
            )
            if call.id in results:
                arranged.append(results[call.id])
    return arranged


def _write_calls_as_text(
    turns: list[HistoryTurn], capabilities: Capabilities, output_format: OutputFormat, result: str
) -> list[HistoryTurn]:
    """If the template does not render calls, write them into the text as the model writes them, and turn results into
    user messages if no role renders them."""
    if capabilities.tool_calls:
        return turns
    for turn in turns:
        if turn.calls:
            if output_format.tools:
                calls = [WrittenCall(call.name, call.arguments, call.id) for call in turn.calls]
                text = write_calls(output_format.tools, calls)
            else:
                lines = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
                text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
            turn.text += ("\n" if turn.text else "") + text
            turn.calls = []
        if turn.role == "tool" and (result or capabilities.tool_role is None):
            words = (result or "Result of {name}: {text}").replace("{name}", turn.name or "a tool")
            turn.role, turn.text = "user", words.replace("{text}", turn.text)
    return turns


def _merge(turns: list[HistoryTurn], capabilities: Capabilities) -> list[HistoryTurn]:
    """Merge text and the calls after it into one assistant message; merge other adjacent messages of one role only if
    the template requires alternation."""
    arranged: list[HistoryTurn] = []
    for turn in turns:
        last = arranged[-1] if arranged else None
        if last is None or last.role != turn.role or turn.role in ("system", "tool") or last.calls:
            arranged.append(turn)
        elif capabilities.alternation or (turn.role == "assistant" and turn.calls):
            last.text = "\n\n".join(part for part in (last.text, turn.text) if part)
            last.reasoning = "\n".join(part for part in (last.reasoning, turn.reasoning) if part)
            last.calls = turn.calls
        else:
            arranged.append(turn)
    return arranged


def _alternate(turns: list[HistoryTurn]) -> list[HistoryTurn]:
    """Begin with a user message, and put an assistant message between a result and the next user message, as templates
    that count turns require."""
    arranged: list[HistoryTurn] = []
    for turn in turns:
        previous = arranged[-1].role if arranged else None
        if turn.role == "assistant" and previous in (None, "system"):
            arranged.append(HistoryTurn(role="user", text=FILLER))
        if turn.role == "user" and previous == "tool":
            arranged.append(HistoryTurn(role="assistant", text=FILLER))
        if turn.role == "assistant" and not turn.calls and not turn.text and not turn.reasoning:
            turn.text = FILLER
        arranged.append(turn)
    return arranged


# --- shape


def _shape(turns: list[HistoryTurn], capabilities: Capabilities, warnings: list[str]) -> list[Message]:
    """Convert turns to dictionaries with the keys and value types that the template accepts."""
    names: dict[str, str] = {}  # the history's call ids → the ids in the prompt
    shaped: list[Message] = []
    for turn in turns:
        if turn.role == "tool":
            message = _plain(capabilities.tool_role or "tool", turn.text, capabilities)
            message["tool_call_id"] = names.get(turn.call_id, turn.call_id)
            if turn.name:
                message["name"] = turn.name
            shaped.append(message)
        elif turn.calls:
            # A message with the calls, preceded by one with its text if the template does not support both together.
            calls: list[Message] = []
            for call in turn.calls:
                arguments: Any = call.arguments
                if capabilities.arguments == "string":
                    arguments = json.dumps(call.arguments, ensure_ascii=False)
                names[call.id] = _prompt_call_id(call, capabilities, len(names))
                function = {"name": call.name, "arguments": arguments}
                calls.append({"id": names[call.id], "type": "function", "function": function})
            text = turn.text
            if text and not capabilities.text_with_calls:
                if capabilities.alternation:
                    warnings.append(TEXT_LEFT_OUT)
                else:
                    shaped.append(_plain("assistant", text, capabilities))
                text = ""
            if text and turn.reasoning and not capabilities.thought_beside_text:
                turn = msgspec.structs.replace(turn, reasoning=f"{turn.reasoning}\n{text}")
                text = ""
            message = {"role": "assistant", "tool_calls": calls}
            if text:
                message = {**_plain("assistant", text, capabilities), **message}
            else:
                message |= no_text(capabilities.call_content)
            shaped.append(_with_thought(message, turn, capabilities))
        else:
            shaped.append(_with_thought(_plain(turn.role, turn.text, capabilities), turn, capabilities))
    return shaped


def _plain(role: str, text: str, capabilities: Capabilities) -> Message:
    content: Any = text if capabilities.string_content else [{"type": "text", "text": text}]
    return {"role": role, "content": content}


def _with_thought(message: Message, turn: HistoryTurn, capabilities: Capabilities) -> Message:
    needed = capabilities.needs_reasoning and turn.role == "assistant"
    if capabilities.reasoning_field is None or not (turn.reasoning or needed):
        return message
    return with_reasoning(message, capabilities.reasoning_field, turn.reasoning)


def _prompt_call_id(call: HistoryCall, capabilities: Capabilities, index: int) -> str:
    """Return a call's id in the form that the template requires: with the function's name, or of nine characters."""
    if capabilities.id_is_name:
        return call.id if f".{call.name}:" in call.id else f"functions.{call.name}:{index}"
    if capabilities.short_ids and not (len(call.id) == 9 and call.id.isascii() and call.id.isalnum()):
        number = int.from_bytes(hashlib.sha256(call.id.encode("utf-8", "surrogatepass")).digest()[:8])
        return "".join(_ALPHABET[number // 62**place % 62] for place in range(9))
    return call.id
