"""Long conversations within the model's context: what the model is told of one that has grown too long.

Only what the model is told changes. The thread keeps every message; beside them stands an activity that says what was
left out of the prompt and what stands in for it, from which later runs go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec
from ag_ui.core import ActivityMessage, AssistantMessage, Message, ReasoningMessage, ToolCall, ToolMessage, UserMessage

from adapters.errors import RequestError
from agent_server.agents.compaction_settings import Compaction, Summarise
from agent_server.agents.conversation import Conversation
from agent_server.agents.early_calls import Asked
from agent_server.agents.guardrails import Forbidden
from agent_server.agents.turn import TurnTaker
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs import Recorder, RunContext
from events.message import to_dicts
from events.options import Compact
from events.vocabulary import COMPACTED_ACTIVITY, COMPACTING_EVENT, ActivitySnapshot, Custom, Event

logger = logging.getLogger("agent_server.agent")
COMPACTED = COMPACTED_ACTIVITY
NO_SUMMARY = "The model made no summary of the conversation."
SUMMARY_SECONDS = 60.0
"""For a summary that an agent's own function makes."""
REQUEST = "Summarise our conversation so far."
INSTRUCTIONS = (
    "Summarise this beginning of a conversation for the assistant who goes on with it, in the conversation's language. "
    "Keep names, numbers, decisions, open questions and what tools found. Write the summary alone."
)
PIECE = 0.4
"""Part of the context that one piece of a conversation takes that is being summarised."""
SUMMARY = 0.2
"""Part of the context that a summary takes at most: the one before the piece, and the one that is written."""
MESSAGE_BYTES = 16
"""What a template writes around a message, about."""
HEAD = ("system", "developer")


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was left out of the prompt. `cut`: the index in the conversation's prompt of the first message that is still
    told; those of the head are told in any case."""

    cut: int
    summary: str | None


class Told(msgspec.Struct, frozen=True):
    """What the model is told from a compaction on, as it is sealed for the client: messages in wire form."""

    messages: list[dict[str, Any]]


class Asking(msgspec.Struct, frozen=True):
    """The client's own wish for it. seal: encrypts what is told from then on, for the client to bring it back."""

    wish: Compact
    seal: Callable[[str], str]


class Compactor:
    """Keeps one run's conversation within the context. `view` is what the model is told; `fit` decides that anew before
    a turn, and never fails the turn: where no summary can be made, the messages are left out.

    summarise: makes a summary, for example by a turn of the model's. It may raise anything.
    """

    def __init__(
        self,
        settings: Compaction,
        conversation: Conversation,
        turns: TurnTaker,
        context: RunContext,
        recorder: Recorder,
        emit: Callable[[Event], None],
        summarise: Summarise,
        asking: Asking | None = None,
    ) -> None:
        self._asking = asking
        self._settings = settings
        self._conversation = conversation
        self._turns = turns
        self._context = context
        self._recorder = recorder
        self._emit = emit
        self._summarise = summarise
        self._done: Done | None = None
        self._looked = False

    def view(self) -> list[Message]:
        """The messages for the model."""
        return viewed(self._conversation.prompt, self._done)

    async def fit(self, asked: Callable[[], Asked]) -> None:
        """Before a turn. asked: what it would be asked, as `view` stands."""
        context = await self._turns.context_length()
        own = int(self._settings.at * context)
        at = None if self._asking is None else self._asking.wish.at
        limit = own if at is None else min(at, own)
        if self._bytes(asked()) < limit:  # no prompt has more tokens than bytes
            return
        if not self._looked:
            self._looked = True
            await self._go_on_from_stored()
        tokens = before = await self._turns.prompt_length(*asked())
        failed: str | None = None
        for share in (1.0, 0.5, 0.0):  # a summary may be long, and messages differ in their tokens to the byte
            if tokens <= limit:
                return
            per_byte = tokens / max(1, self._bytes(asked()))
            keep = int(self._settings.keep / self._settings.at * share * limit / per_byte)
            cut = place_to_cut(self._conversation.prompt, 0 if self._done is None else self._done.cut, keep)
            if cut is None:
                return  # there is nothing that could go; a turn that does not fit says so itself
            summary, failed = await self._summary(cut, int(PIECE * context / per_byte))
            self._done = Done(cut=cut, summary=summary)
            tokens = await self._turns.prompt_length(*asked())
            if tokens <= limit or share == 0.0:
                break
        self._tell({"before": before, "after": tokens, "context": context}, failed)

    async def whole(self, asked: Callable[[], Asked]) -> None:
        """All of the conversation as a summary, in the place of a turn. Raises EngineError where none can be made."""
        prompt = self._conversation.prompt
        if len(prompt) == head_of(prompt):
            raise EngineError("invalid_request", "There is no conversation that could be made short.", param="messages")
        context = await self._turns.context_length()
        before = await self._turns.prompt_length(*asked())
        piece = int(PIECE * context * self._bytes(asked()) / max(1, before))
        summary, failed = await self._summary(len(prompt), piece)
        if summary is None:
            raise EngineError("internal", failed or NO_SUMMARY)
        self._done = Done(cut=len(prompt), summary=summary)
        after = await self._turns.prompt_length(*asked())
        self._tell({"before": before, "after": after, "context": context}, None)

    def _bytes(self, asked: Asked) -> int:
        input, _, instructions = asked
        tools = sum(
            _length(each.name) + _length(each.description) + _encoded(each.parameters) for each in input.tools or ()
        )
        context = sum(_length(each.description) + _length(each.value) for each in input.context or ())
        return sum(map(size, input.messages)) + tools + context + _length(instructions or "")

    async def _go_on_from_stored(self) -> None:
        """What an earlier run left out, if the conversation still begins with it."""
        thread = self._context.thread
        prompt = self._conversation.prompt
        for stored in reversed(await thread.messages() if thread is not None else []):
            if stored.get("role") != "activity" or stored.get("activityType") != COMPACTED:
                continue
            content: dict[str, Any] = stored["content"]
            cut = after_counted(prompt, content["messages"])
            if cut is not None and content["digest"] == digest(prompt[:cut]):
                self._done = Done(cut=cut, summary=content.get("summary"))
                return

    async def _summary(self, cut: int, piece: int) -> tuple[str | None, str | None]:
        """The summary of what is told before `cut`, and why there is none."""
        if self._settings.mode == "drop":
            return None, None
        older = viewed(self._conversation.prompt[:cut], self._done)[head_of(self._conversation.prompt) :]
        try:
            summary = await rolling(older, piece, self._told(self._settings.summarise or self._summarise))
        except Exception as error:
            if not isinstance(error, EngineError | RequestError | Forbidden):
                logger.exception("A conversation could not be summarised.")
            summary = ""
        if summary:
            return summary, None
        reason = "No summary of the older messages could be made, so the model is not told of them."
        if self._asking is not None and self._asking.wish.now:
            return None, NO_SUMMARY
        self._recorder.warn(reason)
        return None, reason

    def _told(self, summarise: Summarise) -> Summarise:
        if self._asking is None:
            return summarise

        async def telling(text: str) -> str:
            self._emit(Custom(name=COMPACTING_EVENT, value={}))
            return await summarise(text)

        return telling

    def _tell(self, tokens: dict[str, int], failed: str | None) -> None:
        assert self._done is not None
        prompt = self._conversation.prompt
        content: dict[str, Any] = {
            "mode": "drop" if self._done.summary is None else "summarise",
            "messages": len(counted(prompt[: self._done.cut])),
            "summary": self._done.summary,
            "digest": digest(prompt[: self._done.cut]),
            "tokens": tokens,
            **({"failed": failed} if failed else {}),
            **self._sealed(),
        }
        id = self._context.new_id("activity")
        self._emit(ActivitySnapshot(message_id=id, activity_type=COMPACTED, content=content, replace=True))
        self._conversation.shown.append(ActivityMessage(id=id, activity_type=COMPACTED, content=content))

    def _sealed(self) -> dict[str, str]:
        if self._asking is None:
            return {}
        told = self.view()[self._asking.wish.apart :]
        return {"sealed": self._asking.seal(msgspec.json.encode(Told(to_dicts(told))).decode())}


def viewed(prompt: Sequence[Message], done: Done | None) -> list[Message]:
    """The conversation as the model is told it: the client's instructions at its head, what stands in for the messages
    before the cut, and the rest."""
    if done is None:
        return list(prompt)
    head, rest = list(prompt[: head_of(prompt)]), list(prompt[done.cut :])
    asks = not rest or rest[0].role == "user"
    if done.summary is not None:
        return [*head, *_standing_in(done.summary, asks), *rest]
    if asks:
        return [*head, *rest]
    question = next((each for each in reversed(prompt[: done.cut]) if each.role == "user"), None)
    return [*head, *([question] if question is not None else ()), *rest]


def _standing_in(summary: str, asks: bool) -> list[Message]:
    """A summary as messages, so that users and assistants still take turns. It is never told as instructions: what
    users wrote is in it."""
    if not asks:
        return [UserMessage(id="compacted", content=f"{REQUEST}\n\n{summary}\n\nNow go on.")]
    return [UserMessage(id="compacted", content=REQUEST), AssistantMessage(id="compacted-summary", content=summary)]


def head_of(prompt: Sequence[Message]) -> int:
    """How many instructions of the client's the conversation begins with."""
    return next((index for index, each in enumerate(prompt) if each.role not in HEAD), len(prompt))


def place_to_cut(prompt: Sequence[Message], after: int, keep: int) -> int | None:
    """Where the told part begins that has at most `keep` bytes, or, where none is so short, the last place there is
    behind `after`; None if there is none. A call is not parted from its results, nor thoughts from what they led to. A
    place before a user's message is taken before one within an answer."""
    beginnings = [index for index in range(max(after, head_of(prompt)) + 1, len(prompt)) if _begins(prompt, index)]
    if not beginnings:
        return None
    left: dict[int, int] = {}
    total = 0
    for index in range(len(prompt) - 1, beginnings[0] - 1, -1):
        total += size(prompt[index])
        left[index] = total
    asked = [index for index in beginnings if prompt[index].role == "user"]
    fitting = [index for index in asked if left[index] <= keep] or [each for each in beginnings if left[each] <= keep]
    return fitting[0] if fitting else beginnings[-1]


def _begins(prompt: Sequence[Message], index: int) -> bool:
    role = prompt[index].role
    return role in ("user", "reasoning") or (role == "assistant" and prompt[index - 1].role != "reasoning")


async def rolling(messages: Sequence[Message], piece: int, summarise: Summarise) -> str:
    """A summary of messages that may be more than one prompt holds: piece by piece (of about so many bytes), each with
    the summary of those before it."""
    summary = ""
    for text in pieces(messages, piece):
        summary = await _in_time(summarise, f"Summary of what was before:\n{summary}\n\n{text}" if summary else text)
        if not summary.strip():
            return ""
    return summary.strip()


async def _in_time(summarise: Summarise, text: str) -> str:
    async with asyncio.timeout(SUMMARY_SECONDS):
        return await summarise(text)


def pieces(messages: Iterable[Message], most: int) -> list[str]:
    """The messages written down, in texts of at most about `most` bytes each. Of a message that is longer than half a
    piece, the beginning is written."""
    found: list[list[str]] = [[]]
    room = most
    for message in messages:
        line = written(message).encode()[: max(1, most // 2)].decode(errors="ignore")
        if found[-1] and len(line.encode()) > room:
            found.append([])
            room = most
        found[-1].append(line)
        room -= len(line.encode())
    return ["\n".join(lines) for lines in found if lines]


def written(message: Message) -> str:
    """A message as one who summarises reads it."""
    content = getattr(message, "content", None)
    text = content if isinstance(content, str) else "".join(part.text for part in content or () if part.type == "text")
    calls = [
        f"calls {each.function.name}({each.function.arguments})" for each in getattr(message, "tool_calls", None) or ()
    ]
    return f"{message.role}: " + "\n".join([*([text] if text else ()), *calls])


def calls_of(message: Message) -> Sequence[ToolCall]:
    return (message.tool_calls or ()) if isinstance(message, AssistantMessage) else ()


def counted(prompt: Iterable[Message]) -> list[Message]:
    """The messages that every client tells again, by which a stored summary is known to fit a conversation."""
    return [each for each in prompt if not isinstance(each, ReasoningMessage)]


def after_counted(prompt: Sequence[Message], number: int) -> int | None:
    """The index behind that many counted messages; None if there are not so many."""
    seen = 0
    for index, message in enumerate(prompt):
        if seen == number:
            return index
        seen += not isinstance(message, ReasoningMessage)
    return None  # nothing would be left to be told


def digest(prompt: Iterable[Message]) -> str:
    """What the messages say, whatever their ids."""
    said = hashlib.sha256()
    for message in counted(prompt):
        calls = [
            (each.id, each.function.name, each.function.arguments)
            for each in getattr(message, "tool_calls", None) or ()
        ]
        of = message.tool_call_id if isinstance(message, ToolMessage) else None
        said.update(msgspec.json.encode([message.role, _content(message), calls, of]))
    return said.hexdigest()


def _content(message: Message) -> object:
    content = getattr(message, "content", None)
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in cast("list[Any]", content)]
    return parts[0]["text"] if len(parts) == 1 and parts[0].get("type") == "text" else parts


def size(message: Message) -> int:
    """Bytes of what a message says, about."""
    content = getattr(message, "content", None)
    said = _length(content) if isinstance(content, str) else _encoded(_content(message))
    return (
        MESSAGE_BYTES
        + said
        + sum(_length(each.function.name) + _length(each.function.arguments) for each in calls_of(message))
    )


def _encoded(value: object) -> int:
    return len(msgspec.json.encode(value)) if value else 0


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
