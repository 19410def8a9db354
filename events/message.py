"""Folding: events → messages, state and result of a run, as in the AG-UI client.

Every wire's non-streaming answer, the history and a run's result are made here. Messages are in wire form (camelCase
dictionaries), as in the store and in MESSAGES_SNAPSHOT. The cost is linear in the number of events: deltas are
collected, and joined when the text is read.

The folder expects events that keep the lifecycle rules; `events.lifecycle` checks them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ag_ui.core import AssistantMessage, Message, ToolCall
from pydantic import BaseModel, TypeAdapter

from events.chunks import ChunkExpander
from events.encode import to_wire
from events.metadata import is_cut
from events.patch import PatchError, apply_patch
from events.run_output import FinishedCall, RunOutput, Wire, run_output
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Event,
    Interrupt,
    InterruptOutcome,
    MessagesSnapshot,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

__all__ = ["FinishedCall", "Folder", "RunOutput", "each_dict", "each_model", "fold", "to_dicts", "to_models"]

_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
_CALLS: TypeAdapter[list[ToolCall]] = TypeAdapter(list[ToolCall])
T = TypeVar("T")
CALLS_PART = 256
"""Calls of one message that are converted in one step."""


class _Text:
    """A string that grows by deltas and is stored as `owner[key]`."""

    __slots__ = ("deltas", "key", "owner")

    def __init__(self, owner: Wire, key: str) -> None:
        self.owner, self.key = owner, key
        self.deltas: list[str] = []

    def append(self, delta: str) -> None:
        if not self.deltas:
            initial = self.owner.get(self.key)
            self.deltas.append(initial if isinstance(initial, str) else "")
        self.deltas.append(delta)

    def settle(self) -> None:
        if self.deltas:
            self.owner[self.key] = "".join(self.deltas)
            self.deltas.clear()


class Folder:
    """Folds a run's events. Call `add` with each event in order; read the messages and the state at any time.

    messages, state: those before the run; neither is changed. owned: messages that the folder may change instead, since
    copying a long conversation takes a tenth of a second.
    """

    def __init__(
        self, messages: Sequence[Mapping[str, Any]] = (), state: Any = None, *, owned: Sequence[Wire] | None = None
    ) -> None:
        copied = copy.deepcopy([dict(message) for message in messages]) if messages else []
        self._messages: list[Wire] = copied if owned is None else list(owned)
        self._before = {message["id"] for message in self._messages}
        self.state: Any = {} if state is None else state
        self.issues: list[str] = []
        self.interrupts: list[Interrupt] = []
        self._chunks = ChunkExpander()
        self._started: dict[str, None] = {}
        self._index()

    def _index(self) -> None:
        """Rebuild the indexes. The first message or call with an id counts, as in the client."""
        self._by_id: dict[str, Wire] = {}
        self._calls: dict[str, tuple[Wire, Wire]] = {}
        self._texts: dict[str, _Text] = {}
        self._arguments: dict[str, _Text] = {}
        for message in self._messages:
            self._by_id.setdefault(message["id"], message)
            for call in message.get("toolCalls") or ():
                self._calls.setdefault(call["id"], (message, call))

    @property
    def messages(self) -> list[Wire]:
        """All messages in order, in wire form. They belong to the folder; copy them before a change."""
        self._settle()
        return self._messages

    def add(self, event: Event) -> None:
        """Fold the next event. Raises LifecycleError for a chunk that continues no stream."""
        if type(event) is TextMessageContent and event.metadata is None and not self._chunks.lanes:
            text = self._texts.get(event.message_id)
            if text is not None:  # the fast path for tokens: more text of a message
                text.append(event.delta)
                return
        for single in self._chunks.expand(event):
            handle = _HANDLERS.get(type(single))
            if handle is not None:
                handle(self, single)

    def output(self) -> RunOutput:
        """Return the run's output so far; it is final after its terminal event."""
        added = [message for message in self.messages if message["id"] not in self._before]
        calls: list[FinishedCall] = []
        for call_id in self._started:
            if call_id in self._calls:
                call = self._calls[call_id][1]
                function, complete = call["function"], not is_cut(call.get("metadata"))
                calls.append(
                    FinishedCall(id=call_id, name=function["name"], arguments=function["arguments"], complete=complete)
                )
        return run_output(added, calls)

    def _settle(self) -> None:
        for text in (*self._texts.values(), *self._arguments.values()):
            text.settle()

    # ---- runs -------------------------------------------------------------------------------------------------------

    def _run_started(self, event: RunStarted) -> None:
        self._started = {}
        run_input = event.input
        if isinstance(run_input, BaseModel):
            run_input = run_input.model_dump(mode="json", by_alias=True)
        for message in (run_input or {}).get("messages") or ():
            if message["id"] not in self._by_id:
                self._append(copy.deepcopy(message))

    def _run_finished(self, event: RunFinished) -> None:
        self.interrupts = event.outcome.interrupts if isinstance(event.outcome, InterruptOutcome) else []

    # ---- text and reasoning -----------------------------------------------------------------------------------------

    def _append(self, message: Wire) -> Wire:
        self._messages.append(message)
        self._by_id.setdefault(message["id"], message)
        for call in message.get("toolCalls") or ():
            self._calls.setdefault(call["id"], (message, call))
        return message

    def _start(self, event: TextMessageStart | ReasoningMessageStart) -> None:
        message = self._by_id.get(event.message_id)
        if message is not None and message["role"] == "activity":
            self.issues.append(f"Text for {event.message_id!r}, which is an activity, was dropped.")
            return
        if message is None:
            role, named = "reasoning", {}
            if isinstance(event, TextMessageStart):
                role, named = event.role or "assistant", {} if event.name is None else {"name": event.name}
            message = self._append({"id": event.message_id, "role": role, "content": "", **named, **_owner(event)})
        _merge_metadata(message, event)

    def _content(self, event: TextMessageContent | ReasoningMessageContent) -> None:
        message = self._by_id.get(event.message_id)
        if message is None or message["role"] == "activity":
            return
        text = self._texts.get(event.message_id)
        if text is None:
            text = self._texts[event.message_id] = _Text(message, "content")
        text.append(event.delta)
        _merge_metadata(message, event)

    def _end(self, event: TextMessageEnd | ReasoningMessageEnd) -> None:
        message = self._by_id.get(event.message_id)
        if message is not None and message["role"] != "activity":
            _merge_metadata(message, event)

    def _encrypted_value(self, event: ReasoningEncryptedValue) -> None:
        if event.subtype == "tool-call":
            target = self._calls.get(event.entity_id, (None, None))[1]
        else:
            target = self._by_id.get(event.entity_id)
        if target is not None and target.get("role") != "activity":
            target["encryptedValue"] = event.encrypted_value

    # ---- tools ------------------------------------------------------------------------------------------------------

    def _tool_start(self, event: ToolCallStart) -> None:
        call_id = event.tool_call_id
        self._started.setdefault(call_id)
        if call_id in self._calls:
            call = self._calls[call_id][1]
            call["function"]["name"] = event.tool_call_name
        else:
            # The call belongs to its parent message, or to a new one with the parent's id, or with the call's id if
            # there is no parent or another role has that id.
            message = self._by_id.get(event.parent_message_id) if event.parent_message_id else None
            if message is None or message["role"] != "assistant":
                name = event.parent_message_id if event.parent_message_id and message is None else call_id
                if message is not None:
                    self.issues.append(
                        f"{event.parent_message_id!r} is not an assistant message and cannot have a tool call."
                    )
                owner = _owner(event) if name not in self._by_id else {}
                message = self._append({"id": name, "role": "assistant", "toolCalls": [], **owner})
            call = {"id": call_id, "type": "function", "function": {"name": event.tool_call_name, "arguments": ""}}
            message.setdefault("toolCalls", []).append(call)
            self._calls[call_id] = (message, call)
        _merge_metadata(call, event)

    def _tool_args(self, event: ToolCallArgs) -> None:
        if event.tool_call_id not in self._calls:
            return
        call = self._calls[event.tool_call_id][1]
        text = self._arguments.get(event.tool_call_id)
        if text is None:
            text = self._arguments[event.tool_call_id] = _Text(call["function"], "arguments")
        text.append(event.delta)
        _merge_metadata(call, event)

    def _tool_end(self, event: ToolCallEnd) -> None:
        if event.tool_call_id in self._calls:
            _merge_metadata(self._calls[event.tool_call_id][1], event)

    def _tool_result(self, event: ToolCallResult) -> None:
        content = event.content if isinstance(event.content, str) else to_wire(event)["content"]
        message: Wire = {"id": event.message_id, "toolCallId": event.tool_call_id, "role": "tool", "content": content}
        message |= _owner(event)
        _merge_metadata(message, event)
        # After the message with the call and the results that follow it, or at the end if the call is not known.
        index = len(self._messages)
        if event.tool_call_id in self._calls:
            index = self._index_of(self._calls[event.tool_call_id][0]) + 1
            while index < len(self._messages) and self._messages[index]["role"] == "tool":
                index += 1
        self._messages.insert(index, message)
        if event.message_id in self._by_id:
            self._settle()
            self._index()
        self._by_id.setdefault(event.message_id, message)

    def _index_of(self, message: Wire) -> int:
        return next(index for index, each in enumerate(self._messages) if each is message)

    # ---- state, snapshots, activities -------------------------------------------------------------------------------

    def _state_snapshot(self, event: StateSnapshot) -> None:
        self.state = event.snapshot

    def _state_delta(self, event: StateDelta) -> None:
        try:
            self.state = apply_patch(self.state, event.delta)
        except PatchError as error:
            self.issues.append(f"A state patch was dropped: {error}")

    def _messages_snapshot(self, event: MessagesSnapshot) -> None:
        """Replace messages by id and drop those that the snapshot leaves out.

        Activities and reasoning are dropped only if the snapshot has messages of that role: a producer that does not
        store them cannot mean to delete them.
        """
        self._settle()
        snapshot = {message["id"]: message for message in copy.deepcopy(event.messages)}
        roles = {message["role"] for message in snapshot.values()}
        retained_roles = {"activity", "reasoning"} - roles
        retained = [each for each in self._messages if each["id"] in snapshot or each["role"] in retained_roles]
        self._messages = [snapshot.get(message["id"], message) for message in retained]
        retained_ids = {message["id"] for message in self._messages}
        self._messages += [message for message_id, message in snapshot.items() if message_id not in retained_ids]
        self._index()

    def _activity_snapshot(self, event: ActivitySnapshot) -> None:
        activity: Wire = {"id": event.message_id, "role": "activity", "activityType": event.activity_type}
        activity |= {"content": copy.deepcopy(event.content), **_owner(event)}
        message = self._by_id.get(event.message_id)
        if message is None:
            message = self._append(activity)
        elif event.replace is not False:
            message = self._replace(message, activity)
        elif message["role"] != "activity":
            return
        _merge_metadata(message, event)

    def _replace(self, message: Wire, activity: Wire) -> Wire:
        """Replace a message by an activity. It keeps the metadata of a former activity, but nothing of a message of
        another role, not even its tool calls."""
        if message["role"] == "activity" and "metadata" in message:
            activity["metadata"] = message["metadata"]
        self._settle()
        self._messages[self._index_of(message)] = activity
        if message["role"] == "activity":
            self._by_id[message["id"]] = activity
        else:
            self._index()
        return activity

    def _activity_delta(self, event: ActivityDelta) -> None:
        activity = self._by_id.get(event.message_id)
        if activity is None or activity["role"] != "activity":
            return
        _merge_metadata(activity, event)
        try:
            content = apply_patch(activity.get("content") or {}, event.patch)
        except PatchError as error:
            self.issues.append(f"A patch of activity {event.message_id!r} was dropped: {error}")
            return
        self._replace(activity, activity | {"content": content, "activityType": event.activity_type})


_HANDLERS: dict[type, Any] = {
    RunStarted: Folder._run_started,
    RunFinished: Folder._run_finished,
    TextMessageStart: Folder._start,
    TextMessageContent: Folder._content,
    TextMessageEnd: Folder._end,
    ReasoningMessageStart: Folder._start,
    ReasoningMessageContent: Folder._content,
    ReasoningMessageEnd: Folder._end,
    ReasoningEncryptedValue: Folder._encrypted_value,
    ToolCallStart: Folder._tool_start,
    ToolCallArgs: Folder._tool_args,
    ToolCallEnd: Folder._tool_end,
    ToolCallResult: Folder._tool_result,
    StateSnapshot: Folder._state_snapshot,
    StateDelta: Folder._state_delta,
    MessagesSnapshot: Folder._messages_snapshot,
    ActivitySnapshot: Folder._activity_snapshot,
    ActivityDelta: Folder._activity_delta,
}


def fold(events: Iterable[Event], messages: Sequence[Mapping[str, Any]] = (), state: Any = None) -> Folder:
    """Fold all of `events`."""
    folder = Folder(messages, state)
    for event in events:
        folder.add(event)
    return folder


def to_models(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Convert messages in wire form to the SDK's models. Raises pydantic.ValidationError."""
    return list(map(_MESSAGE.validate_python, messages))


def to_dicts(messages: Iterable[BaseModel]) -> list[Wire]:
    """Convert the SDK's models to messages in wire form."""
    return list(map(_dump, messages))


def each_model(messages: Iterable[Mapping[str, Any]]) -> Iterator[Message | None]:
    """Convert messages one at a time, like `to_models`, so that the caller can pause: a long conversation takes a tenth
    of a second. A message with very many calls takes as long, so None is yielded after each part of it."""
    for message in messages:
        calls = message.get("toolCalls")
        if message.get("role") != "assistant" or not isinstance(calls, list) or len(calls) <= CALLS_PART:
            yield _MESSAGE.validate_python(message)
            continue
        models: list[ToolCall] = []
        for part in _batched(calls, CALLS_PART):
            models += _CALLS.validate_python(part)
            yield None
        bare = _MESSAGE.validate_python({key: value for key, value in message.items() if key != "toolCalls"})
        yield bare.model_copy(update={"tool_calls": models})


def each_dict(messages: Iterable[BaseModel]) -> Iterator[Wire | None]:
    """Convert models one at a time, like `to_dicts`, with None as in `each_model`."""
    for message in messages:
        calls = message.tool_calls if isinstance(message, AssistantMessage) else None
        if not calls or len(calls) <= CALLS_PART:
            yield _dump(message)
            continue
        dicts: list[Wire] = []
        for part in _batched(calls, CALLS_PART):
            dicts += map(_dump, part)
            yield None
        yield _dump(message.model_copy(update={"tool_calls": None})) | {"toolCalls": dicts}


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _dump(model: BaseModel) -> Wire:
    return model.model_dump(mode="json", by_alias=True)


def _owner(event: Any) -> Wire:
    return {} if event.subagent_run_id is None else {"subagentRunId": event.subagent_run_id}


def _merge_metadata(target: Wire, event: Event) -> None:
    """Merge an event's metadata into the target's: per key, the last value wins, without recursion."""
    if event.metadata is not None:
        target["metadata"] = {**target.get("metadata", {}), **event.metadata}
