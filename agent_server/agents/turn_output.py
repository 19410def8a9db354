"""What the tokens of one turn say: events for the run's readers, and messages for the next prompt.

On their way events pass the guards, then the agent's policy for reasoning, then the run's readers. A turn without
guards and policy sends each token's events at once.
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

Tell = Callable[[Event], None]


class Unreadable(EngineError):
    """The model's output could not be read and the request wants that to end the run."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__("internal", message)
        self.kind = code or "internal"  # type: ignore[assignment]


class TurnMessages(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said: reasoning and assistant messages, in order, for the next prompt, and `shown`: the same as
    clients have them (with less of the reasoning)."""

    messages: tuple[Message, ...] = ()
    shown: tuple[Message, ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that are complete."""
        return tuple(call for call in self._all_calls if not is_cut(call.metadata))

    @property
    def cut_calls(self) -> tuple[ToolCall, ...]:
        """Those that the output's end cut off, which nobody may make."""
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
    """One turn's output. emit, follow, guarded, reasoning: as TurnTaker's. told: sees every event behind its sending.

    tokens: those that guards or the policy have read. reasoning_tokens: those that were reasoning.
    """

    def __init__(
        self,
        emit: Tell,
        *,
        reasoning: ReasoningPolicy | None = None,
        follow: Tell | None = None,
        guarded: GuardedStream | None = None,
        told: Tell | None = None,
    ) -> None:
        self._emit = emit
        self._reasoning = reasoning
        self._follow = follow
        self._guarded = guarded
        self._told = told
        self.watched = reasoning is not None or guarded is not None
        """Whether something between the model and the readers may wait; then `tell_watched` takes the events."""
        self.tokens = self.reasoning_tokens = 0
        self._written = Folder()
        self._shown = self._written if reasoning is None else Folder()

    def said(self) -> TurnMessages:
        """What was said so far."""
        shown = to_models(_kept(message) for message in self._shown.messages)
        if self._written is self._shown:
            return TurnMessages(messages=tuple(shown), shown=tuple(shown))
        written = to_models(_kept(message) for message in self._written.messages)
        return TurnMessages(messages=tuple(written), shown=tuple(shown))

    async def messages_yielding(self) -> TurnMessages:
        """As `said`, of a turn that has ended: others have their turn while many calls are converted."""
        shown: list[Message] = await collect_yielding(each_model(map(_kept, self._shown.messages)))
        written = shown
        if self._written is not self._shown:
            written = await collect_yielding(each_model(map(_kept, self._written.messages)))
        return TurnMessages(messages=tuple(written), shown=tuple(shown))

    def read(self, delta: Delta, translator: Translator | PlainTranslator, details: bool) -> list[Event]:
        """What the tokens say. Several at once are what an engine made before the first of them was taken: the server
        is behind, and one event for them costs what one token's would."""
        if len(delta.tokens) == 1 and not details:  # what comes from an engine that is not ahead of the server
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

    def tell(self, events: list[Event]) -> None:
        """Keep the model's events and send them. Raises Unreadable."""
        keep = self._written.add if self._follow is None else self._keep
        for event in events:
            if type(event) is RunError:
                raise Unreadable(event.message, event.code)
            keep(event)
            self._emit(event)
            if self._told is not None:
                self._told(event)

    async def tell_watched(self, events: list[Event]) -> None:
        """As `tell`, with what guards let through of it. Raises Forbidden for what they do not."""
        guarded = self._guarded
        if guarded is None:
            await self._tell_policed(events)
            return
        for event in events:
            await self._tell_policed(await guarded.take(event))
            if guarded.forbidden is not None:
                raise guarded.forbidden

    async def tell_end(
        self, translator: Translator | PlainTranslator, reason: str, stop: str | int | None = None
    ) -> None:
        """The last events. reason, stop: as the translator's `finish`. Of a turn that broke off, guards are asked
        nothing more: what waits for them is left out. Raises Forbidden."""
        guarded = self._guarded
        if not self.watched:
            self.tell(translator.finish(reason, stop))
        elif guarded is not None and reason in ("cancelled", "error"):
            await self._tell_policed(guarded.closing())
        else:
            try:
                await self.tell_watched(translator.finish(reason, stop))
            except Forbidden:
                # Readers were told of messages that began; they get an end for each before the run's.
                await self._tell_policed([] if guarded is None else guarded.closing())
                raise

    def hurry(self) -> None:
        """The turn broke off: no summary is made of its reasoning."""
        if self._reasoning is not None:
            self._reasoning.hurry()

    async def _tell_policed(self, events: list[Event]) -> None:
        """As `tell`, with the reasoning that the agent's policy hides left out or summarised."""
        policy = self._reasoning
        if policy is None:
            self.tell(events)
            return
        for event in events:
            self._keep(event)
            for shown in await policy.shown(event):
                self._shown.add(shown)
                self._emit(shown)
                if self._told is not None:
                    self._told(shown)

    def _keep(self, event: Event) -> None:
        """Add one of the model's events to this turn's messages, as the model wrote it."""
        if isinstance(event, RunError):
            raise Unreadable(event.message, event.code)
        self._written.add(event)
        if self._follow is not None:
            self._follow(event)


def _kept(message: Wire) -> Wire:
    """A message without its tokens, which are only for readers of the stream."""
    metadata = without_tokens(message.get("metadata"))
    rest = {key: value for key, value in message.items() if key != "metadata"}
    return {**rest, "metadata": metadata} if metadata else rest
