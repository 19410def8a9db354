"""Pieces of a model's output → AG-UI events, with ids, each START with its END.

One `Translator` reads one output. Text and calls share one assistant message, which is closed before a call and
reopened when text follows (AG-UI appends to a message that is reopened); each block of reasoning is a message of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from events.delivery import Delivery
from events.formats.output_format import OutputFormat
from events.metadata import CUT, Scored
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ContentText, ParseWarning, Piece, ReasoningText
from events.parsing.policy import Policy, declared_tools
from events.repeated_calls import DistinctCalls
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
    """Text in, events out.

    tools: the declared tools (AG-UI's or OpenAI's form); None: unknown, any name is a tool's; empty: there are none.
    opened: the end of the prompt, which decides where the output starts (None: unknown).
    new_id: makes ids: "message", "reasoning" or "tool_call" → a fresh id.
    message_id: the assistant message's id, where the caller has one.
    marker_ids: text → id of the vocabulary's added tokens.
    policy: the request's settings; `tools` given there wins.
    delivery: when deltas are sent on.
    show_opened: say the prompt's part of a message as well.
    hidden: id → spelling of special tokens whose text is left out; of those in `marker_ids` the parser decides.
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
        # Made when an engine first states what is reasoning; most engines never do.
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
        self._events: list[Event] = []
        self.warnings: list[str] = []
        self.calls = 0
        self.failed = False

    @property
    def message_id(self) -> str:
        """The id of the assistant message that holds the text and the calls."""
        if self._message_id is None:
            self._message_id = self._new_id("message")
        return self._message_id

    @property
    def unsent(self) -> list[Scored]:
        """After `finish`: rows of tokens that no delta carried, as those that end an answer or close a call."""
        return self._rows

    @property
    def ended(self) -> bool:
        """Whether nothing that follows is read, so that generating more is of no use: a call was repeated, or
        there were too many."""
        return self._distinct is not None and self._distinct.ended

    @property
    def reasoning(self) -> bool:
        """Whether what comes next is read as reasoning, as far as is known."""
        return self._parser.mode == "reasoning"

    def feed(
        self, text: str, token_id: int | None = None, detail: Scored | None = None, is_reasoning: bool | None = None
    ) -> list[Event]:
        """Events that `text` completes. token_id: it is the text of this one token. detail: the token's row
        `[id, text, logprob, alternatives]`, which goes with the delta that carries its text. is_reasoning: an engine's
        own statement about the text, which counts more than its markers."""
        if detail is not None:
            self._rows.append(detail)
        if token_id is not None and self._hidden and token_id in self._hidden:
            text = text.removesuffix(self._hidden[token_id])
        # A parser of its own reads it, so that its markers do not move the one that reads the content.
        if is_reasoning:
            # Text of which the engine says that it is reasoning: reasoning, less the markers that it still contains.
            if self._reasoning_parser is None:
                self._reasoning_parser = self._make_reasoning_parser()
            pieces = self._reasoning_parser.feed(text, token_id)
            said = [piece.text for piece in pieces if isinstance(piece, ContentText | ReasoningText)]
            return self._translate([ReasoningText("".join(said))] if any(said) else [])
        return self._translate(self._parser.feed(text, token_id))

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        """Whether these tokens may be fed as one text: they change nothing about how what follows is read."""
        if not self._hidden:
            return self._parser.is_plain(text, token_ids)
        ids = tuple(token_ids)
        return self._hidden.keys().isdisjoint(ids) and self._parser.is_plain(text, ids)

    def finish(self, reason: str = "stop", stop: str | int | None = None) -> list[Event]:
        """The last events; everything that is open is closed. reason: how the generation ended. stop: the string or
        token of the request that ended it. A call that is open is incomplete unless the model itself was done."""
        self._cut = reason != "stop" or self._interrupts(stop)
        events = self._translate(self._parser.finish(cut=self._cut))
        self._close(cut=self._cut)
        return events + self._delivery.deliver(self._taken()) + self._delivery.flush()

    def _interrupts(self, stop: str | int | None) -> bool:
        """Whether what ended the output may stand within a call: a stop string or token that is none of the model's
        own markers."""
        if isinstance(stop, int):
            return stop not in self._markers
        return stop is not None and not self._parser.is_end_marker(stop)

    def abort(self) -> list[Event]:
        """Close what is open after a failure, without reading further."""
        self._close(cut=True)
        return self._delivery.deliver(self._taken()) + self._delivery.flush()

    def finish_reason(self, reason: str) -> str:
        """How the run ended, given how the generation ended: a stop after calls is "tool_calls"; length stays."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def _translate(self, pieces: list[Piece]) -> list[Event]:
        if self._distinct is not None:
            pieces = self._distinct.of(pieces)
        # What nearly every token is: more of the text that is open.
        if (
            len(pieces) == 1
            and self._in_text
            and type(piece := pieces[0]) is ContentText
            and not self._delivery.gathers
        ):
            return [self._more_text(piece.text)]
        # After RUN_ERROR nothing may follow; the pieces behind it are dropped.
        for piece in pieces:
            if self.failed:
                break
            _TELL[type(piece)](self, piece)
        return self._delivery.deliver(self._taken())

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _metadata(self) -> dict[str, object] | None:
        """The rows of the tokens whose text is sent now."""
        # A row is sent once, with the first delta behind its token: so each token is counted once whatever is gathered.
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        return {"tokens": rows}

    def _reasoning(self, piece: ReasoningText) -> None:
        # A message or a call that is open is closed first: reasoning is never inside of either.
        if self._reasoning_id is None:
            self._close()
            self._reasoning_id = self._new_id("reasoning")
            self._events += (
                ReasoningStart(message_id=self._reasoning_id, subagent_run_id=self._producer),
                ReasoningMessageStart(message_id=self._reasoning_id, role="reasoning", subagent_run_id=self._producer),
            )
        self._events.append(
            ReasoningMessageContent(
                message_id=self._reasoning_id,
                delta=piece.text,
                metadata=self._metadata(),
                subagent_run_id=self._producer,
            )
        )

    def _content(self, piece: ContentText) -> None:
        message_id = self.message_id
        if not self._in_text:
            self._close()
            self._in_text = True
            self._events.append(
                TextMessageStart(message_id=message_id, role="assistant", subagent_run_id=self._producer)
            )
        self._events.append(self._more_text(piece.text))

    def _more_text(self, text: str) -> TextMessageContent:
        return TextMessageContent(
            message_id=self.message_id,
            delta=text,
            metadata=self._metadata() if self._rows else None,
            subagent_run_id=self._producer,
        )

    def _call(self, piece: CallStart) -> None:
        # The text's message ends here and is opened again, under the same id, when text follows the call.
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

    def _arguments(self, piece: ArgumentText) -> None:
        # Arguments belong to an open call; without one there is no id to send them under.
        if self._call_id is not None:
            self._events.append(
                ToolCallArgs(
                    tool_call_id=self._call_id,
                    delta=piece.text,
                    metadata=self._metadata(),
                    subagent_run_id=self._producer,
                )
            )

    def _call_end(self, piece: CallEnd) -> None:
        self._close(cut=self._cut and not piece.complete)

    def _warning(self, piece: ParseWarning) -> None:
        self.warnings.append(piece.message)
        # Whatever is open gets its END before RUN_ERROR, which is the last event of a run.
        if piece.kind == "tool_call_error":
            self._close()
            self.failed = True
            self._events.append(RunError(message=f"Tool call parsing failed: {piece.message}", code=PARSE_ERROR))

    def _close(self, cut: bool = False) -> None:
        """End whatever is open. cut: a call among it is incomplete."""
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


_TELL: dict[type[Piece], Callable[[Translator, Any], None]] = {
    ContentText: Translator._content,
    ReasoningText: Translator._reasoning,
    ArgumentText: Translator._arguments,
    CallStart: Translator._call,
    CallEnd: Translator._call_end,
    ParseWarning: Translator._warning,
}
