"""Pieces of a model's output → AG-UI events with ids, each START with its END.

One `Translator` reads one output. Text and calls share one assistant message, which is closed before a call and
reopened when text follows (AG-UI appends to a message that is reopened). Each block of reasoning is a message of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

from events.delivery import Delivery
from events.formats.output_format import OutputFormat
from events.metadata import CUT, Scored, token_metadata
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ContentText, ParseWarning, Piece, ReasoningText
from events.parsing.policy import Policy, declared_tools
from events.repeated_calls import DistinctCalls
from events.visible_text import VisibleText
from events.vocabulary import (
    Event,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)

PARSE_ERROR = "tool_call_parse_error"


class Translator:
    """Translates one output's text to events.

    tools: the declared tools (AG-UI's or OpenAI's form); None: unknown, any name is accepted; empty: there are none.
    opened: the end of the prompt, which determines where the output starts (None: unknown).
    new_id: makes a fresh id for "message", "reasoning" or "tool_call".
    message_id: the assistant message's id, if the caller has one.
    marker_ids: text → id of the vocabulary's added tokens.
    policy: the request's settings; its `tools` take precedence.
    delivery: when deltas are sent.
    show_opened: also emit the part of the message that the prompt already contains.
    hidden: id → text of special tokens that are left out; the parser decides about those in `marker_ids`.
    """

    def __init__(
        self,
        output_format: OutputFormat,
        *,
        tools: Iterable[object] | None,
        opened: str | None,
        new_id: Callable[[str], str],
        message_id: str | None = None,
        marker_ids: Mapping[str, int] | None = None,
        policy: Policy | None = None,
        delivery: Literal["immediate", "adaptive"] = "immediate",
        show_opened: bool = False,
        hidden: Mapping[int, str] | None = None,
        subagent_run_id: str | None = None,
    ) -> None:
        settings = policy or Policy(tools=declared_tools(tools))
        self._parser = Parser(
            output_format, settings, opened=opened, show_opened=show_opened, marker_ids=marker_ids or {}
        )
        # Created when an engine first marks text as reasoning; most engines never do.
        self._reasoning_parser: Parser | None = None
        self._make_reasoning_parser: Callable[[], Parser] = partial(
            Parser, output_format, Policy(tools={}), marker_ids=marker_ids or {}
        )
        markers = frozenset((marker_ids or {}).values())
        self._hidden = {number: text for number, text in (hidden or {}).items() if number not in markers}
        self._distinct = DistinctCalls(settings.tools or {}) if settings.distinct else None
        self._new_id = new_id
        self._delivery = Delivery(delivery)
        self._producer = subagent_run_id or None
        self._message_id = message_id
        self._reasoning_id: str | None = None
        self._call_id: str | None = None
        self._in_text = self._cut = False
        self._markers = markers
        self._rows: list[Scored] = []
        self._visible_text: VisibleText | None = None  # created with the first row
        self._visible: list[list[Scored]] = []
        self._events: list[Event] = []
        self.warnings: list[str] = []
        self.calls = 0
        self.failed = False

    @property
    def message_id(self) -> str:
        """The id of the assistant message with the text and the calls."""
        if self._message_id is None:
            self._message_id = self._new_id("message")
        return self._message_id

    @property
    def unsent(self) -> list[Scored]:
        """After `finish`: rows of tokens that no delta carried, such as those that end an answer or close a call."""
        return self._rows

    @property
    def ended(self) -> bool:
        """Whether further output would be ignored because a call was repeated or there were too many, so that
        generation can stop."""
        return self._distinct is not None and self._distinct.ended

    @property
    def reasoning(self) -> bool:
        """Whether the next text is parsed as reasoning, as far as is known."""
        return self._parser.mode == "reasoning"

    def feed(
        self, text: str, token_id: int | None = None, detail: Scored | None = None, is_reasoning: bool | None = None
    ) -> list[Event]:
        """Parse more text and return the events that it completes.

        token_id: set if `text` is that of one token. detail: the token's row `[id, text, logprob, alternatives]`, which
        is sent with the delta that carries its text. is_reasoning: the engine's own statement about the text, which
        takes precedence over markers.
        """
        if token_id is not None and self._hidden and token_id in self._hidden:
            text = text.removesuffix(self._hidden[token_id])
        if detail is not None:
            self._rows.append(detail)
            if self._visible_text is None:
                self._visible_text = VisibleText()
            self._visible_text.add(detail, text)
        if is_reasoning:
            # A separate parser removes markers from the reasoning, so that they do not affect the main parser's state.
            if self._reasoning_parser is None:
                self._reasoning_parser = self._make_reasoning_parser()
            pieces = self._reasoning_parser.feed(text, token_id)
            texts = [piece.text for piece in pieces if isinstance(piece, ContentText | ReasoningText)]
            return self._translate([ReasoningText("".join(texts))] if any(texts) else [])
        return self._translate(self._parser.feed(text, token_id))

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        """Return whether these tokens can be fed as one text because they do not change the parser's state."""
        if not self._hidden:
            return self._parser.is_plain(text, token_ids)
        ids = tuple(token_ids)
        return self._hidden.keys().isdisjoint(ids) and self._parser.is_plain(text, ids)

    def finish(self, reason: str = "stop", stop: str | int | None = None) -> list[Event]:
        """Return the last events, which close everything open.

        reason: how the generation ended. stop: the request's stop string or token that ended it. An open call is
        incomplete unless the model itself ended the output, also by a stop string that is one of its end markers.
        """
        if isinstance(stop, int):
            interrupted = stop not in self._markers
        else:
            interrupted = stop is not None and not self._parser.is_end_marker(stop)
        self._cut = reason != "stop" or interrupted
        events = self._translate(self._parser.finish(cut=self._cut))
        self._close(cut=self._cut)
        return events + self._delivery.deliver(self._take_events()) + self._delivery.flush()

    def abort(self) -> list[Event]:
        """Return the events that close everything open after a failure."""
        self._close(cut=True)
        return self._delivery.deliver(self._take_events()) + self._delivery.flush()

    def finish_reason(self, reason: str) -> str:
        """Return the run's finish reason for a generation's: "stop" after calls becomes "tool_calls", others stay."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def _translate(self, pieces: list[Piece]) -> list[Event]:
        if self._distinct is not None:
            pieces = self._distinct.filter(pieces)
        if self._visible_text is not None:
            texts = [piece.text for piece in pieces if isinstance(piece, ContentText | ReasoningText)]
            calls = any(isinstance(piece, CallStart | ArgumentText | CallEnd) for piece in pieces)
            if texts or calls:
                self._visible = self._visible_text.take(texts, self._parser.unread, calls=calls)
        # The fast path for nearly all tokens: more of the open text.
        if (
            len(pieces) == 1
            and self._in_text
            and type(piece := pieces[0]) is ContentText
            and not self._delivery.gathers
        ):
            return [self._more_text(piece.text)]
        # Nothing may follow RUN_ERROR, so later pieces are dropped.
        for piece in pieces:
            if self.failed:
                break
            self._add(piece)
        return self._delivery.deliver(self._take_events())

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _metadata(self) -> dict[str, object] | None:
        """Return the metadata of the next delta: the rows of the tokens since the last one."""
        # A row is sent once, with the first delta after its token, so every token is counted once, however text is
        # buffered.
        rows, self._rows = self._rows, []
        return token_metadata(rows, rows)

    def _text_metadata(self) -> dict[str, object] | None:
        """As `_metadata`, for text, with the tokens that make it up. Tokens whose text is held back wait with it."""
        if self._visible_text is None:
            return None
        rows, self._rows = self._visible_text.split(self._rows)
        return token_metadata(rows, self._visible.pop(0))

    def _add(self, piece: Piece) -> None:
        """Append the events of one piece."""
        match piece:
            case ContentText(text=text):
                message_id = self.message_id
                if not self._in_text:
                    self._close()
                    self._in_text = True
                    self._events.append(
                        TextMessageStart(message_id=message_id, role="assistant", subagent_run_id=self._producer)
                    )
                self._events.append(self._more_text(text))
            case ArgumentText(text=text):
                # Arguments belong to an open call; without one there is no id for them.
                if (call_id := self._call_id) is not None:
                    metadata, producer = self._metadata(), self._producer
                    self._events.append(
                        ToolCallArgs(tool_call_id=call_id, delta=text, metadata=metadata, subagent_run_id=producer)
                    )
            case ReasoningText(text=text):
                # An open message or call is closed first, since neither may contain reasoning.
                if self._reasoning_id is None:
                    self._close()
                    id = self._reasoning_id = self._new_id("reasoning")
                    self._events += (
                        ReasoningStart(message_id=id, subagent_run_id=self._producer),
                        ReasoningMessageStart(message_id=id, role="reasoning", subagent_run_id=self._producer),
                    )
                self._events.append(
                    ReasoningMessageContent(
                        message_id=self._reasoning_id,
                        delta=text,
                        metadata=self._text_metadata(),
                        subagent_run_id=self._producer,
                    )
                )
            case CallStart():
                # The text's message ends here and is reopened under the same id if text follows the call.
                self._close()
                self.calls += 1
                self._call_id = piece.id or self._new_id("tool_call")
                self._events.append(
                    ToolCallStart(
                        tool_call_id=self._call_id,
                        tool_call_name=piece.name,
                        parent_message_id=self.message_id,
                        subagent_run_id=self._producer,
                    )
                )
            case CallEnd():
                self._close(cut=self._cut and not piece.complete)
            case ParseWarning():
                self.warnings.append(piece.message)
                # Everything open gets its END before RUN_ERROR, which is the last event of a run.
                if piece.kind == "tool_call_error":
                    self._close()
                    self.failed = True
                    self._events.append(
                        RunError(message=f"Tool call parsing failed: {piece.message}", code=PARSE_ERROR)
                    )

    def _more_text(self, text: str) -> TextMessageContent:
        return TextMessageContent(
            message_id=self.message_id,
            delta=text,
            metadata=self._text_metadata(),
            subagent_run_id=self._producer,
        )

    def _close(self, cut: bool = False) -> None:
        """Close everything open. cut: an open call is incomplete."""
        if self._in_text:
            self._in_text = False
            self._events.append(TextMessageEnd(message_id=self.message_id, subagent_run_id=self._producer))
        if self._reasoning_id is not None:
            self._events += (
                ReasoningMessageEnd(message_id=self._reasoning_id, subagent_run_id=self._producer),
                ReasoningEnd(message_id=self._reasoning_id, subagent_run_id=self._producer),
            )
            self._reasoning_id = None
        if self._call_id is not None:
            self._events.append(
                ToolCallEnd(
                    tool_call_id=self._call_id,
                    subagent_run_id=self._producer,
                    metadata=dict(CUT) if cut else None,
                )
            )
            self._call_id = None
