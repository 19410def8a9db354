"""Compaction: fit a conversation that has grown too long into the model's context.

Only the prompt changes. The thread keeps every message, and an activity that records what was left out of the prompt
and what replaces it; later runs continue from that.
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
from agent_server.agents.conversation_context import ConversationContext
from agent_server.agents.early_calls import TurnRequest
from agent_server.agents.guardrails import Forbidden
from agent_server.agents.turn import TurnTaker
from agent_server.engine_protocol.protocol import EngineError
from events.message import to_dicts
from events.options import Compact
from events.vocabulary import COMPACTED_ACTIVITY, COMPACTING_EVENT, ActivitySnapshot, Custom

logger = logging.getLogger("agent_server.agent")
COMPACTED = COMPACTED_ACTIVITY
NO_SUMMARY = "The model made no summary of the conversation."
SUMMARY_SECONDS = 60.0
"""The time limit for one call that summarises a text."""
REQUEST = "Summarise our conversation so far."
INSTRUCTIONS = (
    "Summarise this beginning of a conversation for the assistant who goes on with it, in the conversation's language. "
    "Keep names, numbers, decisions, open questions and what tools found. Write the summary alone."
)
PIECE = 0.4
"""The share of the context that one piece of a conversation may take when it is summarised."""
SUMMARY = 0.2
"""The largest share of the context for a summary: the one before the piece, and the one being written."""
MESSAGE_BYTES = 16
"""Approximate size of what a template writes around a message."""
HEAD_ROLES = ("system", "developer")


class CompactedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What was left out of the prompt. cut: index of the first message of the conversation that stays in the prompt;
    the instructions at its head stay in any case."""

    cut: int
    summary: str | None


class SealedView(msgspec.Struct, frozen=True):
    """The messages that the model gets after a compaction, in wire form, as they are sealed for the client."""

    messages: list[dict[str, Any]]


class ClientCompaction(msgspec.Struct, frozen=True):
    """A compaction that the client asked for. seal: encrypts the compacted messages, for the client to send back."""

    request: Compact
    seal: Callable[[str], str]


class Compactor:
    """Keeps one run's conversation within the context.

    `view` returns the messages for the model; `fit` updates it before a turn. Compaction never fails the turn: if no
    summary can be made, the messages are left out.

    summarise: writes a summary, for example with a turn of the model. It may raise anything.
    """

    def __init__(
        self,
        settings: Compaction,
        context: ConversationContext,
        turns: TurnTaker,
        summarise: Summarise,
        client: ClientCompaction | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._turns = turns
        self._conversation = context.conversation
        self._context = context.run
        self._recorder = context.run.recorder
        self._emit = context.emit
        self._summarise = summarise
        self._compacted: CompactedPrompt | None = None
        self._stored_checked = False

    def view(self) -> list[Message]:
        """The messages for the model."""
        return compacted_view(self._conversation.prompt, self._compacted)

    async def fit(self, next_request: Callable[[], TurnRequest]) -> None:
        """Compact the conversation before a turn if it is too long. next_request: the turn with the current `view`."""
        context = await self._turns.context_length()
        own = int(self._settings.at * context)
        at = None if self._client is None else self._client.request.at
        limit = own if at is None else min(at, own)
        if self._bytes(next_request()) < limit:  # no prompt has more tokens than bytes
            return
        if not self._stored_checked:
            self._stored_checked = True
            # Restore the compaction of an earlier run, if the conversation still starts with the same messages.
            thread, prompt = self._context.thread, self._conversation.prompt
            for stored in reversed(await thread.messages() if thread is not None else []):
                if stored.get("role") != "activity" or stored.get("activityType") != COMPACTED:
                    continue
                content: dict[str, Any] = stored["content"]
                cut = index_after_comparable(prompt, content["messages"])
                if cut is not None and content["digest"] == digest(prompt[:cut]):
                    self._compacted = CompactedPrompt(cut=cut, summary=content.get("summary"))
                    break
        tokens = before = await self._turns.prompt_length(*next_request())
        failed: str | None = None
        for share in (1.0, 0.5, 0.0):  # a summary may be long, and the ratio of tokens to bytes varies
            if tokens <= limit:
                return
            per_byte = tokens / max(1, self._bytes(next_request()))
            keep = int(self._settings.keep / self._settings.at * share * limit / per_byte)
            cut = find_cut(self._conversation.prompt, 0 if self._compacted is None else self._compacted.cut, keep)
            if cut is None:
                return  # nothing can be left out; a turn that does not fit reports that itself
            summary, failed = await self._summary(cut, int(PIECE * context / per_byte))
            self._compacted = CompactedPrompt(cut=cut, summary=summary)
            tokens = await self._turns.prompt_length(*next_request())
            if tokens <= limit or share == 0.0:
                break
        self._emit_activity({"before": before, "after": tokens, "context": context}, failed)

    async def compact_all(self, next_request: Callable[[], TurnRequest]) -> None:
        """Replace the whole conversation by a summary, instead of a turn. Raises EngineError if none can be made."""
        prompt = self._conversation.prompt
        if len(prompt) == head_of(prompt):
            raise EngineError("invalid_request", "There is no conversation to compact.", param="messages")
        context = await self._turns.context_length()
        before = await self._turns.prompt_length(*next_request())
        piece = int(PIECE * context * self._bytes(next_request()) / max(1, before))
        summary, failed = await self._summary(len(prompt), piece)
        if summary is None:
            raise EngineError("internal", failed or NO_SUMMARY)
        self._compacted = CompactedPrompt(cut=len(prompt), summary=summary)
        after = await self._turns.prompt_length(*next_request())
        self._emit_activity({"before": before, "after": after, "context": context}, None)

    def _bytes(self, request: TurnRequest) -> int:
        input, _, instructions = request
        tools = sum(
            _length(each.name) + _length(each.description) + _encoded(each.parameters) for each in input.tools or ()
        )
        context = sum(_length(each.description) + _length(each.value) for each in input.context or ())
        return sum(map(size, input.messages)) + tools + context + _length(instructions or "")

    async def _summary(self, cut: int, piece: int) -> tuple[str | None, str | None]:
        """The summary of the messages before `cut`, and the reason if there is none."""
        if self._settings.mode == "drop":
            return None, None

        async def summarise(text: str) -> str:
            if self._client is not None:
                self._emit(Custom(name=COMPACTING_EVENT, value={}))
            return await (self._settings.summarise or self._summarise)(text)

        prompt = self._conversation.prompt
        older_messages = compacted_view(prompt[:cut], self._compacted)[head_of(prompt) :]
        try:
            summary = await rolling(older_messages, piece, summarise)
        except Exception as error:
            if not isinstance(error, EngineError | RequestError | Forbidden):
                logger.exception("A conversation could not be summarised.")
            summary = ""
        if summary:
            return summary, None
        reason = "No summary of the older messages could be made, so the model does not see them."
        if self._client is not None and self._client.request.now:
            return None, NO_SUMMARY
        self._recorder.warn(reason)
        return None, reason

    def _emit_activity(self, tokens: dict[str, int], failed: str | None) -> None:
        assert self._compacted is not None
        prompt = self._conversation.prompt
        content: dict[str, Any] = {
            "mode": "drop" if self._compacted.summary is None else "summarise",
            "messages": len(comparable_messages(prompt[: self._compacted.cut])),
            "summary": self._compacted.summary,
            "digest": digest(prompt[: self._compacted.cut]),
            "tokens": tokens,
            **({"failed": failed} if failed else {}),
        }
        if self._client is not None:
            view = to_dicts(self.view()[self._client.request.apart :])
            content["sealed"] = self._client.seal(msgspec.json.encode(SealedView(view)).decode())
        id = self._context.new_id("activity")
        self._emit(ActivitySnapshot(message_id=id, activity_type=COMPACTED, content=content, replace=True))
        self._conversation.visible.append(ActivityMessage(id=id, activity_type=COMPACTED, content=content))


def compacted_view(prompt: Sequence[Message], compacted: CompactedPrompt | None) -> list[Message]:
    """The conversation as the model gets it: the client's instructions at its head, what replaces the messages before
    the cut, and the rest."""
    if compacted is None:
        return list(prompt)
    head, rest = list(prompt[: head_of(prompt)]), list(prompt[compacted.cut :])
    before_user = not rest or rest[0].role == "user"
    if (summary := compacted.summary) is not None:
        # User and assistant messages still alternate. The summary contains what users wrote, so it is never part of the
        # instructions.
        as_messages: list[Message] = [UserMessage(id="compacted", content=f"{REQUEST}\n\n{summary}\n\nNow go on.")]
        if before_user:
            as_messages = [
                UserMessage(id="compacted", content=REQUEST),
                AssistantMessage(id="compacted-summary", content=summary),
            ]
        return [*head, *as_messages, *rest]
    if before_user:
        return [*head, *rest]
    question = next((each for each in reversed(prompt[: compacted.cut]) if each.role == "user"), None)
    return [*head, *([question] if question is not None else ()), *rest]


def head_of(prompt: Sequence[Message]) -> int:
    """The number of system and developer messages at the start of the conversation."""
    return next((index for index, each in enumerate(prompt) if each.role not in HEAD_ROLES), len(prompt))


def find_cut(prompt: Sequence[Message], after: int, keep: int) -> int | None:
    """The index at which to cut the conversation such that at most `keep` bytes remain.

    If no cut leaves so little, the last possible one behind `after`; None if there is none. A cut separates neither a
    call from its results nor reasoning from the message after it. Cuts before a user's message are preferred.
    """
    candidates = [
        index
        for index in range(max(after, head_of(prompt)) + 1, len(prompt))
        if (role := prompt[index].role) in ("user", "reasoning")
        or (role == "assistant" and prompt[index - 1].role != "reasoning")
    ]
    if not candidates:
        return None
    bytes_from: dict[int, int] = {}
    total = 0
    for index in range(len(prompt) - 1, candidates[0] - 1, -1):
        total += size(prompt[index])
        bytes_from[index] = total
    user_candidates = [index for index in candidates if prompt[index].role == "user"]
    fitting = [index for index in user_candidates if bytes_from[index] <= keep] or [
        each for each in candidates if bytes_from[each] <= keep
    ]
    return fitting[0] if fitting else candidates[-1]


async def rolling(messages: Sequence[Message], piece: int, summarise: Summarise) -> str:
    """Summarise messages that may not fit one prompt: piece by piece, each together with the summary of those before.

    piece: approximate size of a piece in bytes.
    """
    summary = ""
    for text in pieces(messages, piece):
        async with asyncio.timeout(SUMMARY_SECONDS):
            summary = await summarise(f"Summary of what was before:\n{summary}\n\n{text}" if summary else text)
        if not summary.strip():
            return ""
    return summary.strip()


def pieces(messages: Iterable[Message], max_bytes: int) -> list[str]:
    """Transcripts of the messages, of at most about `max_bytes` each. A message longer than half a piece is cut."""
    lines_by_piece: list[list[str]] = [[]]
    room = max_bytes
    for message in messages:
        line = transcript_of(message).encode()[: max(1, max_bytes // 2)].decode(errors="ignore")
        if lines_by_piece[-1] and len(line.encode()) > room:
            lines_by_piece.append([])
            room = max_bytes
        lines_by_piece[-1].append(line)
        room -= len(line.encode())
    return ["\n".join(lines) for lines in lines_by_piece if lines]


def transcript_of(message: Message) -> str:
    """A message in the form in which it is summarised."""
    content = getattr(message, "content", None)
    text = content if isinstance(content, str) else "".join(part.text for part in content or () if part.type == "text")
    calls = [
        f"calls {each.function.name}({each.function.arguments})" for each in getattr(message, "tool_calls", None) or ()
    ]
    return f"{message.role}: " + "\n".join([*([text] if text else ()), *calls])


def calls_of(message: Message) -> Sequence[ToolCall]:
    return (message.tool_calls or ()) if isinstance(message, AssistantMessage) else ()


def comparable_messages(prompt: Iterable[Message]) -> list[Message]:
    """The messages that every client sends again, which identify the conversation that a stored summary belongs to."""
    return [each for each in prompt if not isinstance(each, ReasoningMessage)]


def index_after_comparable(prompt: Sequence[Message], number: int) -> int | None:
    """The index after that many comparable messages; None if there are too few."""
    count = 0
    for index, message in enumerate(prompt):
        if count == number:
            return index
        count += not isinstance(message, ReasoningMessage)
    return None  # no message would remain


def digest(prompt: Iterable[Message]) -> str:
    """A hash of the messages' content, independent of their ids."""
    hash = hashlib.sha256()
    for message in comparable_messages(prompt):
        calls = [
            (each.id, each.function.name, each.function.arguments)
            for each in getattr(message, "tool_calls", None) or ()
        ]
        call_id = message.tool_call_id if isinstance(message, ToolMessage) else None
        hash.update(msgspec.json.encode([message.role, _content(message), calls, call_id]))
    return hash.hexdigest()


def _content(message: Message) -> object:
    content = getattr(message, "content", None)
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in cast("list[Any]", content)]
    return parts[0]["text"] if len(parts) == 1 and parts[0].get("type") == "text" else parts


def size(message: Message) -> int:
    """The approximate size of a message in bytes."""
    content = getattr(message, "content", None)
    content_bytes = _length(content) if isinstance(content, str) else _encoded(_content(message))
    return (
        MESSAGE_BYTES
        + content_bytes
        + sum(_length(each.function.name) + _length(each.function.arguments) for each in calls_of(message))
    )


def _encoded(value: object) -> int:
    return len(msgspec.json.encode(value)) if value else 0


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
