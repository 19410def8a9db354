"""Guards applied to a conversation: its input, and its events before anyone else sees them.

Deltas wait until every guard lets them through; the end of a message decides what still waits. The arguments of calls
are read as the tool gets them, with JSON's escapes undone. Everything that is not a delta is read whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from ag_ui.core import AssistantMessage, DocumentPart, Message, RunAgentInput

from adapters.errors import RequestError
from agent_server.agents.guardrails.guard import Forbidden, Guard, Guards, Watch, Where, found
from agent_server.media.documents import DocumentText
from events.metadata import CUT
from events.options import GenerationOptions
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Custom,
    Event,
    MessagesSnapshot,
    Raw,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    StateDelta,
    StateSnapshot,
    StepStarted,
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

Delta = TextMessageContent | ReasoningMessageContent | ToolCallArgs
DELTAS: Mapping[type, Where] = {
    TextMessageContent: "text", ReasoningMessageContent: "reasoning", ToolCallArgs: "arguments",
}  # fmt: skip
ENDS: Mapping[type, Where] = {TextMessageEnd: "text", ReasoningMessageEnd: "reasoning", ToolCallEnd: "arguments"}
WHOLE: Mapping[type, Where] = {
    ToolCallStart: "arguments", ToolCallResult: "results",
    **dict.fromkeys((MessagesSnapshot, StateSnapshot, StateDelta, ActivitySnapshot, ActivityDelta, Custom, Raw,
                     StepStarted, RunFinished, RunError, SubagentStarted, SubagentError, SubagentFinished), "text"),
}  # fmt: skip
"""Events whose strings are read at once."""
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Unescaped:
    """JSON text as what it spells, piece by piece: `read` gives the characters, and `ends` where in the text as it was
    written each of them ended. An escape that is not whole yet waits for the rest of it."""

    def __init__(self) -> None:
        self.ends: deque[int] = deque()
        self._written = 0
        self._escape = ""
        self._high = ""
        """The first half of a surrogate pair, which waits for the second."""
        self._high_end = 0

    def read(self, text: str) -> str:
        said: list[str] = []
        for character in text:
            self._written += 1
            if not self._escape and character != "\\":
                self._say(said, character)
                continue
            self._escape += character
            if (spelled := _spelled(self._escape)) is not None:
                self._escape = ""
                self._say(said, spelled)
        return "".join(said)

    def _say(self, said: list[str], character: str) -> None:
        high, self._high = self._high, ""
        if high and "\udc00" <= character <= "\udfff":
            character = (high + character).encode("utf-16", "surrogatepass").decode("utf-16")
        elif high:
            said.append("\ufffd")
            self.ends.append(self._high_end)
        if "\ud800" <= character <= "\udbff":
            self._high, self._high_end = character, self._written
            return
        said.append(character)
        self.ends.append(self._written)


def _spelled(escape: str) -> str | None:
    """What an escape stands for; None while it is not whole."""
    kind = escape[1:2]
    if kind != "u":
        return _SHORT.get(kind, kind) if kind else None
    if len(escape) < 6:
        return None
    try:
        return chr(int(escape[2:], 16))
    except ValueError:
        return "\ufffd"


class Reading:
    """One message as its guards read it: the deltas that wait, and how much of them may leave."""

    def __init__(self, where: Where, guards: tuple[Guard, ...]) -> None:
        self.where = where
        self._watches: list[tuple[Guard, Watch]] = [(guard, guard.watch()) for guard in guards]
        self._waiting: deque[tuple[Delta, int]] = deque()
        self._total = self._left = self._spoken = 0
        self._unescaped = Unescaped() if where == "arguments" else None

    def restart(self) -> None:
        """Another message follows."""
        self._total = self._left = self._spoken = 0
        self._unescaped = Unescaped() if self._unescaped is not None else None
        for _, watch in self._watches:
            watch.restart()

    async def take(self, event: Delta) -> tuple[list[Event], Forbidden | None]:
        self._total += len(event.delta)
        self._waiting.append((event, self._total))
        text = event.delta if self._unescaped is None else self._unescaped.read(event.delta)
        return await self._read(text, last=False)

    async def end(self) -> tuple[list[Event], Forbidden | None]:
        return await self._read("", last=True)

    async def _read(self, text: str, *, last: bool) -> tuple[list[Event], Forbidden | None]:
        self._spoken += len(text)
        # What may leave is the least that all guards let go of: each holds back what may be the beginning of a match.
        free, refused = self._spoken, None
        kept: list[tuple[Guard, Watch]] = []
        for guard, watch in self._watches:
            upto, stopped = await watch.read(text, last=last)
            if stopped:
                try:
                    found(guard, self.where)
                except Forbidden as forbidden:
                    refused = refused or forbidden
                else:  # it only notes, and has done so for this conversation
                    continue
            free = min(free, upto)
            kept.append((guard, watch))
        self._watches = kept
        # At the end all of it may leave, also an escape that was never finished and so spells nothing.
        whole = last and refused is None and free >= self._spoken
        return list(self._release(self._total if whole else self._written(free))), refused

    def _written(self, spoken: int) -> int:
        """Where in the message as it was written that many characters of what it spells end."""
        if self._unescaped is None:
            return spoken
        ends = self._unescaped.ends
        # Ends of characters that left already are dropped on the way, so that the queue is as long as what waits.
        gone = self._spoken - len(ends)
        while gone < spoken - 1:
            ends.popleft()
            gone += 1
        return ends[0] if gone < spoken and ends else self._left

    def _release(self, upto: int) -> Iterator[Event]:
        while self._waiting and self._left < upto:
            event, end = self._waiting[0]
            begin = end - len(event.delta)
            # A part of a delta has no metadata: its tokens' rows would spell the rest of it.
            if end <= upto:
                self._waiting.popleft()
                whole = self._left <= begin
                yield event if whole else _part(event, event.delta[self._left - begin :])
                self._left = end
            else:
                yield _part(event, event.delta[max(self._left - begin, 0) : upto - begin])
                self._left = upto


def _part(event: Delta, delta: str) -> Event:
    return msgspec.structs.replace(event, delta=delta, metadata=None)


class GuardedStream:
    """`take` gives the events that may be sent now. After it, `forbidden` says why nothing more may be, if it is
    set."""

    def __init__(self, guards: Guards, where: Where | None = None) -> None:
        """where: what all of it counts as, in place of what it is."""
        self.guards = guards
        self._as = where
        self._open: dict[tuple[Where, str], Reading] = {}
        self._free: dict[Where, Reading] = {}
        self._told: dict[tuple[type, str], Event] = {}
        """What was begun and not ended → its end."""
        self.forbidden: Forbidden | None = None

    async def take(self, event: Event) -> list[Event]:
        if isinstance(event, TextMessageContent | ReasoningMessageContent | ToolCallArgs):
            return self._kept(await self._reading(DELTAS[type(event)], _id(event)).take(event))
        # The end of a message decides on what still waits of it, which is sent before the end itself.
        kind, before = type(event), list[Event]()
        if kind in ENDS:
            before = await self._end(ENDS[kind], _id(event))
        elif kind in WHOLE:
            where = WHOLE[kind]
            try:
                await self.check(event, where)
            except Forbidden as forbidden:
                self.forbidden = forbidden
        if self.forbidden is not None:
            return before
        # What was begun is remembered: readers must be told its end where the turn is stopped.
        if (ender := CLOSERS.get(kind)) is not None:
            key = "tool_call_id" if ender is ToolCallEnd else "message_id"
            cut = {"metadata": dict(CUT)} if ender is ToolCallEnd else {}
            made: Event = ender(**{key: _id(event), "subagent_run_id": getattr(event, "subagent_run_id", None), **cut})
            self._told[ender, _id(event)] = made
        elif kind in ENDERS:
            self._told.pop((kind, _id(event)), None)
        return [*before, event]

    def closing(self) -> list[Event]:
        """The ends of what was begun, the last first."""
        ends = list(reversed(self._told.values()))
        self._told.clear()
        return ends

    async def check(self, event: Event, where: Where) -> None:
        """Read an event's strings. Raises Forbidden."""
        if not self.guards.of(where):
            return
        for text in strings(_said(event)):
            await self.guards.check(text, where)

    async def finish(self) -> list[Event]:
        """What still waits in messages that were not ended."""
        events: list[Event] = []
        for where, id in list(self._open):
            if self.forbidden is None:
                events += await self._end(where, id)
        return events

    def _reading(self, where: Where, id: str) -> Reading:
        # Watches go on from message to message, since some clients see the texts of both as one; see `_end`.
        if (reading := self._open.get((where, id))) is None:
            reading = self._free.pop(where, None)
            if reading is None:
                reading = Reading(where, tuple(self.guards.of(self._as or where)))
            else:
                reading.restart()
            self._open[where, id] = reading
        return reading

    async def _end(self, where: Where, id: str) -> list[Event]:
        reading = self._open.pop((where, id), None)
        if reading is None:
            return []
        if where != "arguments":  # nobody sees the arguments of two calls as one text
            self._free[where] = reading
        return self._kept(await reading.end())

    def _kept(self, read: tuple[list[Event], Forbidden | None]) -> list[Event]:
        events, self.forbidden = read
        return events


WITHHELD = "agent_server.withheld"
"""The activityType of what shows that an answer was stopped: {"message", "where"}."""


def withheld(id: str, forbidden: Forbidden) -> ActivitySnapshot:
    """What clients show where an answer was stopped."""
    content = {"message": forbidden.message, "where": forbidden.where}
    return ActivitySnapshot(message_id=id, activity_type=WITHHELD, content=content, replace=True)


CLOSERS: Mapping[type, type] = {
    TextMessageStart: TextMessageEnd, ReasoningStart: ReasoningEnd,
    ReasoningMessageStart: ReasoningMessageEnd, ToolCallStart: ToolCallEnd,
}  # fmt: skip
ENDERS = frozenset(CLOSERS.values())


def _said(event: Event) -> object:
    """What an event says: of those that begin something, their ids are left out."""
    match event:
        case ToolCallStart(tool_call_name=name):
            return name
        case SubagentStarted(name=name, description=description):
            return [name, description]
        case _:
            return msgspec.to_builtins(event)


def _id(event: Event) -> str:
    return str(getattr(event, "message_id", None) or getattr(event, "tool_call_id", ""))


def strings(value: object) -> Iterator[str]:
    """Every string in a JSON value, names included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += one.values()
            waiting += [name for name in one if isinstance(name, str)]
        elif isinstance(one, list | tuple):
            waiting += one


IDS = "Guards read what is sent to this server, and a prompt of token ids cannot be read: send it as text."


Opened = Callable[[Sequence[Message]], Awaitable[list[Message]]]
"""Messages → the same with text in place of their documents."""


async def screen(guards: Guards, input: RunAgentInput, options: GenerationOptions, opened: Opened) -> None:
    """Read a request before anything of it is kept or told to the model. Raises Forbidden, RequestError for a request
    that cannot be read, and what `opened` raises for a document that cannot be."""
    if not guards.of("prompt"):
        return
    # Those of the whole conversation: what is sent again was let through before, or was sent to nobody here.
    if any(isinstance(part, DocumentPart) for message in input.messages for part in _parts(message)):
        await check_documents(guards, await opened(input.messages), ("prompt", "prompt"))
    raw = options.raw_prompt
    if raw is not None and not isinstance(raw, str):
        raise RequestError("invalid_request", IDS, "prompt")
    newest = "\n\n".join(text for message in _after_answer(input.messages) for text in _screened_text(message))
    await guards.check_prompt(chain(_texts(input, raw), _options_texts(options)), raw or newest)


async def check_documents(
    guards: Guards, messages: Sequence[Message], where: tuple[Where, Where] = ("prompt", "results")
) -> None:
    """Read what documents said, in whose place texts are. where: what those of users and of tools count as. Raises
    Forbidden."""
    for message in messages:
        pages: list[tuple[str, str]] = []
        for part in [part for part in _parts(message) if isinstance(part, DocumentText)]:
            if part.page == 0 and pages:
                await guards.check_document(pages, where[message.role == "tool"])
                pages = []
            pages.append((part.text, part.page_text))
        if pages:
            await guards.check_document(pages, where[message.role == "tool"])


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else ()


def _texts(input: RunAgentInput, raw: str | None) -> Iterator[str]:
    if raw is not None:
        yield raw
    for message in input.messages:
        yield from _screened_text(message)
        yield from joined(message.content)
        yield getattr(message, "name", None) or ""
        for call in getattr(message, "tool_calls", None) or ():
            yield call.function.name
            yield Unescaped().read(call.function.arguments)
    for tool in input.tools or ():
        yield tool.name
        yield tool.description
        yield from strings(tool.parameters)
    for each in input.context or ():
        yield from (each.description, each.value)
    for answer in input.resume or ():
        yield from strings(answer.payload)
    yield from strings(input.state)
    yield from strings(input.forwarded_props)  # agents of other frameworks are given them


def _options_texts(options: GenerationOptions) -> Iterator[str]:
    """What templates write besides the conversation: their variables, and the shape that an answer must have."""
    yield from strings(options.template_kwargs)
    yield from options.tool_grammars.values()
    if options.response_format is not None:
        yield options.response_format.name or ""
        yield from strings(options.response_format.value)


def _screened_text(message: Message) -> Iterator[str]:
    """The texts of a message's content; media cannot be read."""
    content = message.content
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (str(part.text) for part in content if part.type == "text")
    elif content is not None:
        yield from strings(content)


def joined(content: object) -> Iterator[str]:
    """The texts of content in parts as one. Templates write them one behind the other, or a line each: what a guard
    looks for may begin in one part and end in the next."""
    if isinstance(content, list) and len(texts := [text for part in content if (text := _text_of(part))]) > 1:
        yield "".join(texts)
        yield "\n".join(texts)


def _text_of(part: object) -> str:
    found = part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
    return found if isinstance(found, str) else ""


def _after_answer(messages: list[Message]) -> list[Message]:
    """What was said since the model last did."""
    last = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), -1)
    return messages[last + 1 :]
