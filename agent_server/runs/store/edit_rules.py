"""The rules for merging a client's messages with a thread's: what is an edit or a retry, and what it cuts off.

Pure: ids and messages in, ids out. `thread_messages` writes the result.

Clients send all of a thread, only the part that one of two tabs has, only the last message, the same messages under
new ids, or one message in place of several. The rule (docs/agents.md): stored messages stay and new ones are added.
Messages are removed only when a client asks for another answer, or sends a stored message with other content; they are
kept for restoring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from adapters.agui import flatten

Message = Mapping[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})
ASKING = frozenset({"user", "tool"})
"""Roles of the messages that a model answers."""


def is_unchanged(one: Message, other: Message) -> bool:
    """Return whether two messages with the same id have the same meaning. If not, one is an edit of the other."""
    ids, other_ids = ([call.get("id") for call in each.get("toolCalls") or ()] for each in (one, other))
    return ids == other_ids and one.get("toolCallId") == other.get("toolCallId") and _is_same_but_for_ids(one, other)


def _is_same_but_for_ids(one: Message, other: Message) -> bool:
    """Return whether two messages have the same role, content and calls.

    Clients drop or add metadata, names and empty content, older clients get content parts as text, and some write the
    JSON of arguments and results in another way; none of that is a difference.
    """
    first, second = one.get("content") or "", other.get("content") or ""
    if isinstance(first, list) != isinstance(second, list):
        first, second = _as_text(first), _as_text(second)
    if one.get("role") != other.get("role"):
        return False
    if first != second and not (one.get("role") == "tool" and _is_same_json(first, second)):
        return False
    calls, other_calls = ([_function(call) for call in each.get("toolCalls") or ()] for each in (one, other))
    return len(calls) == len(other_calls) and all(
        name == other_name and (arguments == others or _is_same_json(arguments, others))
        for (name, arguments), (other_name, others) in zip(calls, other_calls, strict=True)
    )


def _is_same_json(one: object, other: object) -> bool:
    """Return whether two texts are the same JSON value."""
    try:
        first, second = (json.dumps(json.loads(_as_text(each)), sort_keys=True) for each in (one, other))
    except (ValueError, RecursionError):
        return False
    return first == second


def _as_text(content: object) -> str:
    return flatten(content) if isinstance(content, list) else str(content or "")


def _function(call: Message) -> tuple[Any, Any]:
    function = call.get("function") or {}
    return function.get("name"), function.get("arguments")


def cut_off(stored: Sequence[str], sent: Sequence[Message]) -> list[str] | None:
    """Return the stored ids that another answer replaces: those after the last message sent. None if the client does
    not ask for another answer, that is, if it sends a new message or its last message cannot be answered."""
    stored_ids = set(stored)
    if not sent or sent[-1].get("role") not in ASKING or any(str(each["id"]) not in stored_ids for each in sent):
        return None
    return list(stored[stored.index(str(sent[-1]["id"])) + 1 :])


def sends_history(sent: Sequence[Message], stored: Collection[str]) -> bool:
    """Return whether a client sends the conversation, that is, a stored message before its last one. Instructions do
    not count, since a client that sends only its last message repeats them with it."""
    return any(str(each["id"]) in stored and each.get("role") not in INSTRUCTIONS for each in sent[:-1])


def renamed_ids(stored: Sequence[Message], sent: Sequence[Message]) -> dict[str, str]:
    """Map stored ids to the ids under which a client sends the same beginning; {} if the beginnings differ.

    The client must send all stored messages, or one of the model's among them: a user may well write "yes" twice.
    Clients do not send activities, and some (Agent Framework) no reasoning.
    """
    same: list[tuple[Message, Message]] = []
    for message in stored:
        if len(same) < len(sent) and _is_same_but_for_ids(message, sent[len(same)]):
            same.append((message, sent[len(same)]))
        elif message.get("role") not in ("activity", "reasoning"):
            if not any(old.get("role") == "assistant" for old, _ in same):
                return {}
            break
    return {str(old["id"]): str(new["id"]) for old, new in same}


def in_stored_form(stored: Sequence[Message], sent: Sequence[Message]) -> list[Message]:
    """Return a client's messages with the stored messages of each answer in place of what the client made of them.

    TanStack AI shows the messages between two of the user's as one, and sends that: reasoning under new ids, then one
    assistant message with all text and all calls, then the results under new ids. Only an answer with the same text,
    calls, reasoning and results is replaced, or its beginning if the user stopped it; results that are not stored yet
    follow it.
    """
    answers = _answers(stored)
    answer_of = {id: answer for answer in answers for id in _ids(answer)}
    stored_ids = {str(message["id"]) for message in stored}
    found: list[Message] = []
    for is_answer, group in groupby(sent, _is_of_answer):
        messages = list(group)
        answer = next((answer_of[id] for id in _ids(messages) if id in answer_of), None) if is_answer else None
        if answer is None or all(str(message["id"]) in stored_ids for message in messages):
            found += messages
        else:
            found += _as_stored(answer, messages) or messages
    return found


def _is_of_answer(message: Message) -> bool:
    return message.get("role") in ("assistant", "reasoning", "tool")


def _answers(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages of each answer. Clients do not send activities, so these do not count."""
    shown = [message for message in messages if message.get("role") != "activity"]
    return [list(group) for is_answer, group in groupby(shown, _is_of_answer) if is_answer]


def _ids(messages: Sequence[Message]) -> list[str]:
    """Return the ids of messages and of their calls."""
    calls = (call for message in messages for call in message.get("toolCalls") or ())
    return [*(str(message["id"]) for message in messages), *(str(call.get("id")) for call in calls)]


def _as_stored(answer: Sequence[Message], sent: Sequence[Message]) -> list[Message] | None:
    """Return the answer as far as it was shown, then the results in `sent` of calls that have none yet; None if the
    messages are not those of the answer."""

    def of(messages: Sequence[Message], role: str) -> list[Message]:
        return [message for message in messages if message.get("role") == role]

    def text(messages: Sequence[Message]) -> str:
        return "".join(_as_text(message.get("content")) for message in of(messages, "assistant"))

    def calls(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
        return [(call.get("id"), *_function(call)) for message in messages for call in message.get("toolCalls") or ()]

    whole, shown, last = text(answer), text(sent), answer[-1]
    missing = len(whole) - len(shown)
    if missing > 0 and last.get("role") == "assistant" and not last.get("toolCalls"):
        kept = len(content := _as_text(last.get("content"))) - missing
        answer = [*answer[:-1], {**last, "content": content[: max(kept, 0)]}]
    reasoning = [_as_text(message.get("content")) for message in of(answer, "reasoning")]
    results = {message.get("toolCallId"): message.get("content") for message in of(answer, "tool")}
    is_same = (
        text(answer) == shown
        and calls(answer) == calls(sent)
        and all(any(r.startswith(_as_text(each.get("content"))) for r in reasoning) for each in of(sent, "reasoning"))
        and all(
            _as_text(results[id]) == _as_text(message.get("content"))
            or _is_same_json(results[id], message.get("content"))
            for message in of(sent, "tool")
            if (id := message.get("toolCallId")) in results
        )
    )
    new_results = [message for message in of(sent, "tool") if message.get("toolCallId") not in results]
    return [*answer, *new_results] if is_same else None


def order_before_run(stored: Sequence[str], sent: Sequence[str]) -> list[str]:
    """Return the thread's order with a client's messages before a run: new messages at the end go to the end, new ones
    before that go after the message that they follow."""
    stored_ids = set(stored)
    trailing = next((index for index, id in enumerate(reversed(sent)) if id in stored_ids), len(sent))
    earlier, new = sent[: len(sent) - trailing], sent[len(sent) - trailing :]
    return [*_merged(stored, earlier, lambda id: False), *new]


def order_after_run(stored: Sequence[str], sent: Sequence[str], answers: Callable[[str], bool]) -> list[str]:
    """Return the thread's order with the messages that a run added to those it began with.

    answers: whether a stored message answers the one before it. An addition goes after an earlier answer to the same
    question and before the next question, which may be stored already.
    """
    return _merged(stored, sent, answers)


def _merged(stored: Sequence[str], sent: Sequence[str], skip: Callable[[str], bool]) -> list[str]:
    """Insert each new id after its predecessor in `sent`; ids in both lists take the order of `sent`."""
    stored_ids, sent_ids = set(stored), set(sent)
    common = iter([id for id in sent if id in stored_ids])
    order = [next(common) if id in sent_ids else id for id in stored]
    index = 0
    for id in sent:
        if id in stored_ids:
            index = order.index(id) + 1
            continue
        while index < len(order) and order[index] not in sent_ids and skip(order[index]):
            index += 1
        order.insert(index, id)
        index += 1
    return order
