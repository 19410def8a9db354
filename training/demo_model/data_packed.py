"""Rows of many turns after one list of tools, in which every answer is learned as the last one is.

A turn costs a fraction of what it costs in a dialogue of its own, where the tools and the system text come again.
"""

from collections.abc import Callable

from training.demo_model.data_chat import Exchange, knowledge, small_talk
from training.demo_model.data_comparisons import sorting, told_comparison
from training.demo_model.data_conversations import Conversation
from training.demo_model.data_facts import declined, fact, world
from training.demo_model.data_languages import foreign
from training.demo_model.data_messages import (
    absence,
    asked,
    assistant,
    call_thought,
    calling,
    styled,
    thinking_at_times,
    user,
    words_of,
)
from training.demo_model.data_requests import ASK, Request
from training.demo_model.data_system import system_message
from training.demo_model.data_tools import ToolDefinition, demo_tool, some_tools, tool_name, toolset
from training.demo_model.data_unseen import declared_tool
from training.demo_model.data_values import Values
from training.demo_model.render import Dialogue, Message

_SPOKEN = (*(foreign,) * 3, *(world,) * 6, *(knowledge,) * 3)
# What the exchanges of one row are about; a maker that stands twice is drawn twice as often.
TALK = (*(fact,) * 7, *(small_talk,) * 6, *(declined,) * 5, *_SPOKEN)
# Tools whose calls are short.
BRIEF = ("get_weather", "calculate", "calculate", "get_time", "change_background", "search", "send_email")
# Characters of a cut answer: so many tell the answers apart, fewer where a thought did so before.
SHOWN, SHOWN_AFTER_THOUGHT = 50, 14
# The follow-ups of a conversation are drawn once more, beside the turns that fit.
FOLLOW_SHARE = 0.35


def packed_talk(values: Values) -> Dialogue:
    """Return exchanges without tools and requests for short calls, with most answers cut."""
    messages, tools, thinking = system_message(values), some_tools(values), thinking_at_times(values)
    for _ in range(values.between(6, 20)):
        messages += _brief_call(values, tools) if values.chance(0.25) else _brief(values, thinking)
    messages[-1].pop("shown", None)
    return Dialogue("packed", messages, tools, thinking, packed=True)


def _brief(values: Values, thinking: bool) -> list[Message]:
    """Return an exchange whose answer is mostly cut."""
    exchange = values.pick(TALK)(values)
    told = assistant(exchange.answer, exchange.thought)
    shown = SHOWN_AFTER_THOUGHT if thinking else SHOWN
    if " " in exchange.answer[:shown] and len(exchange.answer) > shown and values.chance(0.8):
        told["shown"] = shown
    return [user(asked(values, exchange)), told]


def _brief_call(values: Values, tools: list[ToolDefinition]) -> list[Message]:
    """Return a request for one of the tools whose calls are short, or the answer that it is absent."""
    name = values.pick(BRIEF)
    request = ASK[name](values)
    if name in map(tool_name, tools):
        return _called(values, request)
    return [_asked(values, request), absence(name)]


def _asked(values: Values, request: Request) -> Message:
    return user(styled(values, request.question, words_of(request)))


def _called(values: Values, request: Request) -> list[Message]:
    return [_asked(values, request), calling([request], call_thought([request]))]


def packed_turns(values: Values) -> Dialogue:
    """Return a conversation with results and follow-ups."""
    tools = toolset(values, ("get_weather",) if values.chance(0.5) else ())
    messages, talk = system_message(values), Conversation(values, tools)
    for _ in range(values.between(5, 14)):
        leaning = talk.follow_ups()
        kind = values.pick(leaning) if leaning and values.chance(FOLLOW_SHARE) else None
        messages += talk.turn(kind).messages
    return Dialogue("packed_turns", messages, tools, thinking_at_times(values), packed=True)


def packed_tools(values: Values) -> Dialogue:
    """Return requests for a few tools that nobody declared before, and for some of the demo's beside them."""
    asks: dict[str, tuple[ToolDefinition, Callable[[], Request]]] = {}
    for _ in range(values.between(3, 8)):
        tool, ask = declared_tool(values)
        asks.setdefault(tool_name(tool), (tool, ask))
    for name in BRIEF[: values.pick((0, 0, 1, 2, 4))]:
        asks.setdefault(name, (demo_tool(name), lambda name=name: ASK[name](values)))  # type: ignore[misc]
    declared = list(asks.values())
    values.rng.shuffle(declared)
    messages, thinking = system_message(values), thinking_at_times(values)
    for _ in range(values.between(4, 9)):
        if values.chance(0.1):
            messages += _brief(values, thinking)
        else:
            messages += _called(values, values.pick(declared)[1]())
    messages[-1].pop("shown", None)
    return Dialogue("packed_tools", messages, [tool for tool, _ in declared], thinking, packed=True)


def packed_comparisons(values: Values) -> Dialogue:
    """Return comparisons of temperatures that the user tells, and numbers in order."""
    messages, tools = system_message(values), some_tools(values)
    for _ in range(values.between(6, 16)):
        messages += exchanged(values, (sorting if values.chance(0.6) else told_comparison)(values))
    return Dialogue("packed_compared", messages, tools, thinking_at_times(values), packed=True)


def exchanged(values: Values, exchange: Exchange) -> list[Message]:
    """Return the two messages of an exchange."""
    return [user(asked(values, exchange)), assistant(exchange.answer, exchange.thought)]
