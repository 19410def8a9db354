"""How what a client shows of a thread and what is stored of it become one history. Pure: ids and messages in, ids out.

Clients show more or less of a thread: all of it, the part that one of two tabs has, a last message alone, or the same
words under new ids. The rule, as docs/agents.md has it: what is stored stays; what is new is added; only a message that
is asked again, or comes back changed under its own id, takes something away, and what it takes is kept aside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from adapters.agui import flatten

Message = Mapping[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})
ASKING = frozenset({"user", "tool"})
"""Roles of the messages that a model answers."""


def same(one: Message, other: Message) -> bool:
    """Whether two messages of one id say the same. Clients drop or add metadata, names and empty content on the way,
    and old ones are sent content parts as text: none of that is an edit."""
    rest_of_one, rest_of_other = ((_calls(each), each.get("toolCallId")) for each in (one, other))
    return one.get("role") == other.get("role") and rest_of_one == rest_of_other and _same_content(one, other)


def _same_content(one: Message, other: Message) -> bool:
    first, second = one.get("content") or "", other.get("content") or ""
    if isinstance(first, list) != isinstance(second, list):
        first, second = (flatten(each) if isinstance(each, list) else each for each in (first, second))
    return bool(first == second)


def _calls(message: Message) -> list[tuple[object, ...]]:
    return [(call.get("id"), *_function(call)) for call in message.get("toolCalls") or ()]


def _function(call: Message) -> tuple[Any, Any]:
    function = call.get("function") or {}
    return function.get("name"), function.get("arguments")


def _told(message: Message) -> tuple[Any, ...]:
    """What a message says where its ids do not count either."""
    calls = [_function(call) for call in message.get("toolCalls") or ()]
    return message.get("role"), message.get("content") or "", calls


def asks_again(given: Sequence[Message], stored: Collection[str]) -> bool:
    """Whether a client asks for another answer: it shows nothing new, and last a message that is to be answered."""
    return bool(given) and given[-1].get("role") in ASKING and all(str(each["id"]) in stored for each in given)


def shows_history(given: Sequence[Message], stored: Collection[str]) -> bool:
    """Whether a client holds the conversation: it shows a stored message of it before the message that it asks.
    Instructions do not count, since a client that sends its last message alone repeats them with it."""
    return any(str(each["id"]) in stored and each.get("role") not in INSTRUCTIONS for each in given[:-1])


def retold(stored: Sequence[Message], given: Sequence[Message]) -> dict[str, str]:
    """Stored ids → the ids under which a client tells the same beginning again; {} if it tells something else.

    It must tell all that is stored, or the model's own words among it: a user may well say "yes" twice.
    """
    stored = [each for each in stored if each.get("role") != "activity"]  # which no client tells
    told = 0
    while told < min(len(stored), len(given)) and _told(stored[told]) == _told(given[told]):
        told += 1
    if told < len(stored) and not any(each.get("role") == "assistant" for each in stored[:told]):
        return {}
    return {str(old["id"]): str(new["id"]) for old, new in zip(stored[:told], given, strict=False)}


def appended(stored: Sequence[str], given: Sequence[str]) -> list[str]:
    """The thread's order with what a client shows before a run: what it shows last and new comes last of all; what
    is new before that comes after the message that it follows."""
    known = set(stored)
    trailing = next((place for place, id in enumerate(reversed(given)) if id in known), len(given))
    shown, new = given[: len(given) - trailing], given[len(given) - trailing :]
    return [*_placed(stored, shown, lambda id: False), *new]


def concluded(stored: Sequence[str], given: Sequence[str], answers: Callable[[str], bool]) -> list[str]:
    """The thread's order with what a run added to the messages it began from. `answers`: whether a stored message
    belongs to what it follows: an addition comes after an earlier answer to the same question, and before the next
    question, which may be waiting already."""
    return _placed(stored, given, answers)


def _placed(stored: Sequence[str], given: Sequence[str], skip: Callable[[str], bool]) -> list[str]:
    """Each new id behind the one before it in `given`; the ids that both have in the order of `given`."""
    known, shown = set(stored), set(given)
    mine = iter([id for id in given if id in known])
    order = [next(mine) if id in shown else id for id in stored]
    place = 0
    for id in given:
        if id in known:
            place = order.index(id) + 1
            continue
        while place < len(order) and order[place] not in shown and skip(order[place]):
            place += 1
        order.insert(place, id)
        place += 1
    return order
