"""The output of a conversation's turns: events for the run's readers, and messages for the next prompt.

Events pass through the guards, then the agent's reasoning policy, then go to the run's readers. A turn without guards
or a policy sends each token's events at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from ag_ui.core import AssistantMessage, Message, ToolCall

from agent_server.agents.guardrails import Forbidden, GuardedStream
from agent_server.agents.reasoning_policy import ReasoningPolicy
from agent_server.engine_protocol.protocol import Delta, EngineError
from agent_server.pacing import collect_yielding
from agent_server.runs.execution import token_row
from events.delivery import joined
from events.message import Folder, each_model, to_models
from events.metadata import is_cut, without_tokens
from events.plain import PlainTranslator
from events.run_output import Wire
from events.translator import Translator
from events.vocabulary import Event, RunError

EmitEvent = Callable[[Event], None]


class UnparsableOutput(EngineError):
    """The model's output could not be parsed, and the request asks to fail the run in that case."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__("internal", message)
        self.kind = code or "internal"  # type: ignore[assignment]


class TurnMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The model's reasoning and assistant messages of one turn, in order.

    messages: for the next prompt. visible: as clients have them, which may have less of the reasoning.
    """

    messages: tuple[Message, ...] = ()
    visible: tuple[Message, ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are complete."""
        return tuple(call for call in self._all_calls if not is_cut(call.metadata))

    @property
    def cut_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the end of the output cut off; they must not be made."""
        return tuple(call for call in self._all_calls if is_cut(call.metadata))

    @property
    def _all_calls(self) -> Iterator[ToolCall]:
        for message in self.messages:
            if isinstance(message, AssistantMessage):
                yield from message.tool_calls or ()

    @property
    def text(self) -> str:
        spoken = [message.content for message in self.messages if isinstance(message, AssistantMessage)]
        return "".join(each for each in spoken if each)


class TurnOutput:
    """The output of a conversation's turns, one turn at a time.

    send: sends an event (a subagent's are marked on the way). reasoning: the agent's policy. follow: called with every
    event of the model before it is sent. guarded: filters the model's output; what it withholds appears nowhere else,
    and the turn ends with Forbidden.

    tokens: the number of the turn's tokens that guards or the policy have read. reasoning_tokens: the number that were
    reasoning.
    """

    def __init__(
        self,
        send: EmitEvent,
        *,
        reasoning: ReasoningPolicy | None = None,
        follow: EmitEvent | None = None,
        guarded: GuardedStream | None = None,
    ) -> None:
        self.send = send
        self.guarded = guarded
        self._reasoning = reasoning
        self._follow = follow
        self.filtered = reasoning is not None or guarded is not None
        """Whether a policy or guards, which may wait, filter what readers get; then use `emit_filtered`."""
        self.begin(None)

    def begin(self, on_event: EmitEvent | None) -> None:
        """Begin a turn. on_event: called with each of its events after it was sent."""
        self._on_event = on_event
        self.tokens = self.reasoning_tokens = 0
        self._model_folder = Folder()
        self._visible_folder = self._model_folder if self._reasoning is None else Folder()
        self._messages: TurnMessages | None = None  # of a completed turn

    def messages_so_far(self) -> TurnMessages:
        """The messages of the turn so far, even if it failed or was cancelled."""
        if self._messages is not None:
            return self._messages
        visible = to_models(_without_token_details(message) for message in self._visible_folder.messages)
        if self._model_folder is self._visible_folder:
            return TurnMessages(messages=tuple(visible), visible=tuple(visible))
        model_messages = to_models(_without_token_details(message) for message in self._model_folder.messages)
        return TurnMessages(messages=tuple(model_messages), visible=tuple(visible))

    async def complete(self) -> TurnMessages:
        """The messages of a turn that has ended. Yields to the event loop while it converts many calls."""
        visible: list[Message] = await collect_yielding(
            each_model(map(_without_token_details, self._visible_folder.messages))
        )
        model_messages = visible
        if self._model_folder is not self._visible_folder:
            model_messages = await collect_yielding(
                each_model(map(_without_token_details, self._model_folder.messages))
            )
        self._messages = TurnMessages(messages=tuple(model_messages), visible=tuple(visible))
        return self._messages

    def read(self, delta: Delta, translator: Translator | PlainTranslator, details: bool) -> list[Event]:
        """Translate a delta's tokens to events. An engine delivers several tokens at once when the server is behind;
        they are joined, so that one event costs what one token's would."""
        if len(delta.tokens) == 1 and not details:  # the usual case: the server keeps up with the engine
            token = delta.tokens[0]
            self.reasoning_tokens += translator.reasoning
            return translator.feed(token.text, token.id, None, delta.is_reasoning)
        if len(delta.tokens) > 1 and not details and not delta.is_reasoning:
            text = "".join(token.text for token in delta.tokens)
            if translator.is_plain(text, (token.id for token in delta.tokens)):
                self.reasoning_tokens += translator.reasoning * len(delta.tokens)
                return translator.feed(text)
        events: list[Event] = []
        for token in delta.tokens:
            detail = token_row(token) if details else None
            self.reasoning_tokens += translator.reasoning
            events += translator.feed(token.text, token.id, detail, delta.is_reasoning)
        return joined(events) if len(delta.tokens) > 1 else events

    def emit(self, events: list[Event]) -> None:
        """Record the model's events and send them. Raises UnparsableOutput."""
        record = self._model_folder.add if self._follow is None else self._record
        for event in events:
            if type(event) is RunError:
                raise UnparsableOutput(event.message, event.code)
            record(event)
            self.send(event)
            if self._on_event is not None:
                self._on_event(event)

    async def emit_filtered(self, events: list[Event]) -> None:
        """As `emit`, for what the guards let through. Raises Forbidden for what they do not."""
        guarded = self.guarded
        if guarded is None:
            await self._emit_with_policy(events)
            return
        for event in events:
            await self._emit_with_policy(await guarded.take(event))
            guarded.raise_forbidden()

    async def finish(
        self, translator: Translator | PlainTranslator, reason: str, stop: str | int | None = None
    ) -> None:
        """Send the turn's last events. reason, stop: as for the translator's `finish`.

        If the turn failed or was cancelled, the guards are not called again, and text that waits for them is dropped.
        Raises Forbidden.
        """
        guarded = self.guarded
        if not self.filtered:
            self.emit(translator.finish(reason, stop))
        elif guarded is not None and reason in ("cancelled", "error"):
            await self._emit_with_policy(guarded.closing())
        else:
            try:
                await self.emit_filtered(translator.finish(reason, stop))
            except Forbidden:
                # Readers have seen the start of some messages; each gets its end before the run ends.
                await self._emit_with_policy([] if guarded is None else guarded.closing())
                raise

    def skip_summaries(self) -> None:
        """The turn failed or was cancelled: do not summarise its reasoning."""
        if self._reasoning is not None:
            self._reasoning.skip_summaries()

    async def _emit_with_policy(self, events: list[Event]) -> None:
        """As `emit`, with reasoning left out or summarised as the agent's policy says."""
        policy = self._reasoning
        if policy is None:
            self.emit(events)
            return
        for event in events:
            self._record(event)
            for visible_event in await policy.visible(event):
                self._visible_folder.add(visible_event)
                self.send(visible_event)
                if self._on_event is not None:
                    self._on_event(visible_event)

    def _record(self, event: Event) -> None:
        """Add an event to the turn's messages as the model wrote it. Raises UnparsableOutput."""
        if isinstance(event, RunError):
            raise UnparsableOutput(event.message, event.code)
        self._model_folder.add(event)
        if self._follow is not None:
            self._follow(event)


def _without_token_details(message: Wire) -> Wire:
    """A message without its token details, which are only for readers of the stream."""
    metadata = without_tokens(message.get("metadata"))
    rest = {key: value for key, value in message.items() if key != "metadata"}
    return {**rest, "metadata": metadata} if metadata else rest
