"""Guards applied to a conversation: to its input, and to its events before anyone else sees them.

Deltas wait until every guard allows them; at the end of a message the guards decide about the rest. Arguments of calls
are checked as the tool gets them, with JSON escapes decoded. Events other than deltas are checked as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec
from ag_ui.core import AssistantMessage, DocumentPart, Message, RunAgentInput

from adapters.errors import RequestError
from agent_server.agents.guardrails.guard import Forbidden, Guard, Guards, Watch, Where, report
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
"""Events whose strings are checked at once."""
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JsonUnescaper:
    """Decodes JSON escapes in a text that arrives in pieces.

    `read` returns the decoded characters, and `ends` holds the index in the raw text at which each of them ended. An
    incomplete escape waits for the rest of it.
    """

    def __init__(self) -> None:
        self.ends: deque[int] = deque()
        self._raw_length = 0
        self._escape = ""
        self._high = ""
        """The first half of a surrogate pair, which waits for the second."""
        self._high_end = 0

    def read(self, text: str) -> str:
        characters: list[str] = []
        for character in text:
            self._raw_length += 1
            if not self._escape and character != "\\":
                self._append(characters, character)
                continue
            self._escape += character
            if (decoded := _decode_escape(self._escape)) is not None:
                self._escape = ""
                self._append(characters, decoded)
        return "".join(characters)

    def _append(self, characters: list[str], character: str) -> None:
        high, self._high = self._high, ""
        if high and "\udc00" <= character <= "\udfff":
            character = (high + character).encode("utf-16", "surrogatepass").decode("utf-16")
        elif high:
            characters.append("\ufffd")
            self.ends.append(self._high_end)
        if "\ud800" <= character <= "\udbff":
            self._high, self._high_end = character, self._raw_length
            return
        characters.append(character)
        self.ends.append(self._raw_length)


def _decode_escape(escape: str) -> str | None:
    """The character of an escape; None while it is incomplete."""
    kind = escape[1:2]
    if kind != "u":
        return _SHORT.get(kind, kind) if kind else None
    if len(escape) < 6:
        return None
    try:
        return chr(int(escape[2:], 16))
    except ValueError:
        return "\ufffd"


class GuardedMessage:
    """One message under its guards' checks: the deltas that wait, and how much of them may be sent."""

    def __init__(self, where: Where, guards: tuple[Guard, ...]) -> None:
        self.where = where
        self._watches: list[tuple[Guard, Watch]] = [(guard, guard.watch()) for guard in guards]
        self._waiting: deque[tuple[Delta, int]] = deque()
        self._received = self._released = self._decoded = 0
        self._unescaped = JsonUnescaper() if where == "arguments" else None

    def restart(self) -> None:
        """Start the next message."""
        self._received = self._released = self._decoded = 0
        self._unescaped = JsonUnescaper() if self._unescaped is not None else None
        for _, watch in self._watches:
            watch.restart()

    async def take(self, event: Delta) -> tuple[list[Event], Forbidden | None]:
        self._received += len(event.delta)
        self._waiting.append((event, self._received))
        text = event.delta if self._unescaped is None else self._unescaped.read(event.delta)
        return await self._read(text, last=False)

    async def end(self) -> tuple[list[Event], Forbidden | None]:
        return await self._read("", last=True)

    async def _read(self, text: str, *, last: bool) -> tuple[list[Event], Forbidden | None]:
        self._decoded += len(text)
        # Send only what all guards allow: each holds back what may be the start of a match.
        free, refusal = self._decoded, None
        remaining: list[tuple[Guard, Watch]] = []
        for guard, watch in self._watches:
            upto, stopped = await watch.read(text, last=last)
            if stopped:
                try:
                    report(guard, self.where)
                except Forbidden as forbidden:
                    refusal = refusal or forbidden.with_traceback(None)
                else:  # it only records findings, and one per conversation is enough
                    continue
            free = min(free, upto)
            remaining.append((guard, watch))
        self._watches = remaining
        # At the end everything may be sent, even an incomplete escape, which decodes to nothing.
        all_free = last and refusal is None and free >= self._decoded
        upto = self._received if all_free else self._raw_length(free)
        released: list[Event] = []
        while self._waiting and self._released < upto:
            event, end = self._waiting[0]
            begin = end - len(event.delta)
            # A part of a delta gets no metadata, since the token details would reveal the rest of it.
            if end <= upto:
                self._waiting.popleft()
                whole = self._released <= begin
                released.append(event if whole else _part(event, event.delta[self._released - begin :]))
                self._released = end
            else:
                released.append(_part(event, event.delta[max(self._released - begin, 0) : upto - begin]))
                self._released = upto
        return released, refusal

    def _raw_length(self, decoded: int) -> int:
        """The index in the raw message at which that many decoded characters end."""
        if self._unescaped is None:
            return decoded
        ends = self._unescaped.ends
        # Drop the ends of characters that were sent already, so that the queue is only as long as the waiting text.
        dropped = self._decoded - len(ends)
        while dropped < decoded - 1:
            ends.popleft()
            dropped += 1
        return ends[0] if dropped < decoded and ends else self._released


def _part(event: Delta, delta: str) -> Event:
    return msgspec.structs.replace(event, delta=delta, metadata=None)


class GuardedStream:
    """Filters a stream of events. `take` returns the events that may be sent now; if it sets `forbidden`, nothing more
    may be sent."""

    def __init__(self, guards: Guards, where: Where | None = None) -> None:
        """where: how to classify all text of the stream, instead of by its events."""
        self.guards = guards
        self._where = where
        self._open: dict[tuple[Where, str], GuardedMessage] = {}
        self._reusable: dict[Where, GuardedMessage] = {}
        self._pending_ends: dict[tuple[type, str], Event] = {}
        """The end event of everything that has started and not ended."""
        self.forbidden: Forbidden | None = None
        """Without a traceback, whose frames refer to this stream."""

    def raise_forbidden(self) -> None:
        """Raise Forbidden if a guard has stopped the stream."""
        if self.forbidden is not None:
            raise Forbidden(self.forbidden.where, self.forbidden.message)

    async def take(self, event: Event) -> list[Event]:
        if isinstance(event, TextMessageContent | ReasoningMessageContent | ToolCallArgs):
            where, id = DELTAS[type(event)], _id(event)
            # Watches continue from message to message, since some clients show both texts as one; see `_end`.
            if (message := self._open.get((where, id))) is None:
                message = self._reusable.pop(where, None)
                if message is None:
                    message = GuardedMessage(where, tuple(self.guards.of(self._where or where)))
                else:
                    message.restart()
                self._open[where, id] = message
            return self._take_result(await message.take(event))
        # At the end of a message the rest of its text is decided about, and sent before the end itself.
        kind, released = type(event), list[Event]()
        if kind in ENDS:
            released = await self._end(ENDS[kind], _id(event))
        elif kind in WHOLE:
            where = WHOLE[kind]
            try:
                await self.check(event, where)
            except Forbidden as forbidden:
                self.forbidden = forbidden.with_traceback(None)
        if self.forbidden is not None:
            return released
        # Remember what has started: if the turn is stopped, readers must get its end.
        if (end_type := CLOSERS.get(kind)) is not None:
            key = "tool_call_id" if end_type is ToolCallEnd else "message_id"
            cut = {"metadata": dict(CUT)} if end_type is ToolCallEnd else {}
            end_event: Event = end_type(
                **{key: _id(event), "subagent_run_id": getattr(event, "subagent_run_id", None), **cut}
            )
            self._pending_ends[end_type, _id(event)] = end_event
        elif kind in ENDERS:
            self._pending_ends.pop((kind, _id(event)), None)
        return [*released, event]

    def closing(self) -> list[Event]:
        """The end events of everything that has started, the last first."""
        ends = list(reversed(self._pending_ends.values()))
        self._pending_ends.clear()
        return ends

    async def check(self, event: Event, where: Where) -> None:
        """Check an event's strings. Raises Forbidden."""
        if not self.guards.of(where):
            return
        match event:  # for events that start something, without their ids
            case ToolCallStart(tool_call_name=name):
                fields: object = name
            case SubagentStarted(name=name, description=description):
                fields = [name, description]
            case _:
                fields = msgspec.to_builtins(event)
        for text in strings(fields):
            await self.guards.check(text, where)

    async def finish(self) -> list[Event]:
        """The waiting events of messages that have not ended."""
        events: list[Event] = []
        for where, id in list(self._open):
            if self.forbidden is None:
                events += await self._end(where, id)
        return events

    async def _end(self, where: Where, id: str) -> list[Event]:
        message = self._open.pop((where, id), None)
        if message is None:
            return []
        if where != "arguments":  # the arguments of two calls are never shown as one text
            self._reusable[where] = message
        return self._take_result(await message.end())

    def _take_result(self, result: tuple[list[Event], Forbidden | None]) -> list[Event]:
        events, self.forbidden = result
        return events


WITHHELD = "agent_server.withheld"
"""The activityType that shows that an answer was stopped; its content is {"message", "where"}."""


def withheld(id: str, forbidden: Forbidden) -> ActivitySnapshot:
    """The activity that clients show where an answer was stopped."""
    content = {"message": forbidden.message, "where": forbidden.where}
    return ActivitySnapshot(message_id=id, activity_type=WITHHELD, content=content, replace=True)


CLOSERS: Mapping[type, type] = {
    TextMessageStart: TextMessageEnd, ReasoningStart: ReasoningEnd,
    ReasoningMessageStart: ReasoningMessageEnd, ToolCallStart: ToolCallEnd,
}  # fmt: skip
ENDERS = frozenset(CLOSERS.values())


def _id(event: Event) -> str:
    return str(getattr(event, "message_id", None) or getattr(event, "tool_call_id", ""))


def strings(value: object) -> Iterator[str]:
    """All strings in a JSON value, including keys."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack += item.values()
            stack += [name for name in item if isinstance(name, str)]
        elif isinstance(item, list | tuple):
            stack += item


IDS = "Guards check what is sent to this server, and cannot check a prompt of token ids. Send it as text."


ReadDocuments = Callable[[Sequence[Message]], Awaitable[list[Message]]]
"""Messages → the same messages with their documents replaced by text."""


async def screen(
    guards: Guards, input: RunAgentInput, options: GenerationOptions, read_documents: ReadDocuments
) -> None:
    """Check a request before any of it is stored or sent to the model.

    Raises Forbidden, RequestError for a request that cannot be checked, and whatever `read_documents` raises.
    """
    if not guards.of("prompt"):
        return
    # Check the documents of the whole conversation: those sent again may never have been checked here.
    if any(isinstance(part, DocumentPart) for message in input.messages for part in _parts(message)):
        await check_documents(guards, await read_documents(input.messages), ("prompt", "prompt"))
    raw = options.raw_prompt
    if raw is not None and not isinstance(raw, str):
        raise RequestError("invalid_request", IDS, "prompt")
    # The newest part is what follows the model's last message.
    messages = input.messages
    last = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), -1)
    newest = "\n\n".join(text for message in messages[last + 1 :] for text in _screened_text(message))
    await guards.check_prompt(_texts(input, options, raw), raw or newest)


async def check_documents(
    guards: Guards, messages: Sequence[Message], where: tuple[Where, Where] = ("prompt", "results")
) -> None:
    """Check the text that replaces documents. where: how to classify documents of users and of tools. Raises
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


def _texts(input: RunAgentInput, options: GenerationOptions, raw: str | None) -> Iterator[str]:
    """All texts of a request that may reach a model."""
    if raw is not None:
        yield raw
    for message in input.messages:
        yield from _screened_text(message)
        yield from joined(message.content)
        yield getattr(message, "name", None) or ""
        for call in getattr(message, "tool_calls", None) or ():
            yield call.function.name
            yield JsonUnescaper().read(call.function.arguments)
    for tool in input.tools or ():
        yield tool.name
        yield tool.description
        yield from strings(tool.parameters)
    for each in input.context or ():
        yield from (each.description, each.value)
    for answer in input.resume or ():
        yield from strings(answer.payload)
    yield from strings(input.state)
    yield from strings(input.forwarded_props)  # agents of other frameworks get them
    # What templates write besides the conversation: their variables, and the required shape of the answer.
    yield from strings(options.template_kwargs)
    yield from options.tool_grammars.values()
    if options.response_format is not None:
        yield options.response_format.name or ""
        yield from strings(options.response_format.value)


def _screened_text(message: Message) -> Iterator[str]:
    """The texts of a message's content; media are not checked."""
    content = message.content
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (str(part.text) for part in content if part.type == "text")
    elif content is not None:
        yield from strings(content)


def joined(content: object) -> Iterator[str]:
    """The texts of content parts joined, with and without line breaks. Templates write them in either way, so a match
    may start in one part and end in the next."""
    if not isinstance(content, list):
        return
    fields = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content]
    texts = [text for text in fields if isinstance(text, str) and text]
    if len(texts) > 1:
        yield "".join(texts)
        yield "\n".join(texts)
