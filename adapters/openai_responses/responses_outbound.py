"""Events → Responses: numbered, typed events, or one response object.

The output depends on the run's events and the request alone. A stream can therefore be resumed by encoding the run
again and omitting the frames that the client has, and the response object is the one in the stream's last event.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from adapters import sse
from adapters.answer import finish_reason, warning_extension
from adapters.body import Limits, wrong
from adapters.client_history import Seal, wrap
from adapters.errors import RequestError, payload, row
from adapters.mcp_request import split_tool_name
from adapters.openai_responses.client_tools import CallKind, ToolForm, call_item
from adapters.openai_responses.input_items import APPROVAL_PREFIX, COMPACTION
from adapters.openai_responses.responses_inbound import ResponseFlags
from adapters.openai_tokens import chat_logprobs
from adapters.request_tools import InputText
from adapters.sse import json_bytes, json_string
from adapters.websocket_messages import CLOSING, Close, ReadMessage, Send, read_text
from events.metadata import Scored, finished_metadata, is_cut, visible_tokens
from events.options import SEARCH_LABEL
from events.vocabulary import (
    COMPACTED_ACTIVITY,
    COMPACTING_EVENT,
    MCP_TOOLS_EVENT,
    ActivitySnapshot,
    Custom,
    Event,
    InterruptOutcome,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

Kind = Literal["message", "reasoning", "compaction", "mcp_list_tools", "mcp_call", "web_search_call"] | CallKind
CALLS: tuple[Kind, ...] = ("function_call", "custom_tool_call")
"""Items of calls that are streamed."""
ITEM_PREFIX: dict[Kind, str] = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "compaction": COMPACTION,
    "local_shell_call": "lsh", "shell_call": "sh", "apply_patch_call": "apc", "tool_search_call": "tsc",
    "mcp_list_tools": "mcpl", "mcp_call": "mcp", "web_search_call": "ws",
}  # fmt: skip


def item_id(response_id: str, kind: Kind, index: int) -> str:
    """Return an output item's id: OpenAI's prefix for its kind, the response's id and the item's index, by which
    `response_of` finds it again."""
    return f"{ITEM_PREFIX[kind]}_{response_id.removeprefix('resp_')}_{index}"


class OutputItem:
    """An output item while it is written. index: its position in the output. cut: a call that the output's end cut
    off."""

    __slots__ = ("cut", "deltas", "head", "id", "index", "input", "kind", "name", "sealed", "source", "tokens")

    def __init__(self, kind: Kind, source: str, id: str, index: int, name: str = "") -> None:
        self.kind: Kind = kind
        self.source = source
        self.id = id
        self.index = index
        self.name = name
        self.sealed: str | None = None
        self.cut = False
        self.deltas: list[str] = []
        self.tokens: list[Scored] = []
        self.head = b""
        self.input = InputText()

    @property
    def text(self) -> str:
        return "".join(self.deltas)


NO_FLAGS = ResponseFlags()
PLAIN = ToolForm()
_ERRORS = {
    "invalid_request": "invalid_prompt",
    "context_length_exceeded": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "overloaded": "rate_limit_exceeded",
}


class ResponseIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """created: seconds since the epoch. hidden_tools: names of the server's own tools."""

    id: str
    model: str
    created: int
    thread_id: str = ""
    hidden_tools: Container[str] = ()


def usage_object(usage: Iterable[TokenUsage]) -> dict[str, Any]:
    parts = list(usage)
    input_tokens = sum(part.input_tokens or 0 for part in parts)
    output_tokens = sum(part.output_tokens or 0 for part in parts)
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": sum(part.cached_input_tokens or 0 for part in parts),
            "cache_write_tokens": 0,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": sum(part.reasoning_tokens or 0 for part in parts)},
        "total_tokens": input_tokens + output_tokens,
    }


def search_query(arguments: str) -> str:
    """Return what a call of a search tool searches for."""
    try:
        values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments
    return str(values.get("query") or " ".join(map(str, values.values())))


class ResponseStream:
    """Encodes one run's events. Frames with a number up to `after` are omitted; numbers count from 0.

    `response` is the response object so far. An item is closed by the event after its end, since its status depends on
    how the run continues.
    """

    content_type = sse.CONTENT_TYPE

    def __init__(self, identity: ResponseIdentity, flags: ResponseFlags = NO_FLAGS, *, after: int = -1) -> None:
        self._identity = identity
        self._flags = flags
        self._after = after
        self._number = -1
        self._open: dict[tuple[Kind, str], OutputItem] = {}
        self._ended: list[OutputItem] = []
        self._output: list[dict[str, Any]] = []
        self._cut_call = False
        self._whole_calls: dict[str, tuple[str, list[str]]] = {}
        """Calls whose items are written at their end: the tool's name and the arguments so far."""
        self._mcp_calls: dict[str, tuple[str, list[str]]] = {
            call: (name, [arguments])
            for call, (name, arguments) in flags.approved_calls.items()
            if split_tool_name(name, flags.mcp) is not None
        }
        """Calls of MCP servers that the request names, until they have a result: the name and the arguments so far."""
        self._state: dict[str, Any] = {"status": "queued" if flags.background else "in_progress"}

    @property
    def response(self) -> dict[str, Any]:
        identity = self._identity
        return {
            "id": identity.id,
            "object": "response",
            "created_at": identity.created,
            "completed_at": None,
            "model": identity.model,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **self._flags.echo,
            **self._state,
            "output": list(self._output),
        }

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if choice or getattr(event, "subagent_run_id", None) is not None:
            return b""
        frames = b"" if not self._ended or isinstance(event, _KEEPS_OPEN) else self._close_ended(event)
        match event:
            case TextMessageContent(message_id=id, delta=delta):
                frames += self._delta("message", id, delta, event.metadata)
            case ReasoningMessageContent(message_id=id, delta=delta):
                frames += self._delta("reasoning", id, delta, None)
            case ToolCallArgs(tool_call_id=id, delta=delta):
                if (whole := self._whole_calls.get(id) or self._mcp_calls.get(id)) is not None:
                    whole[1].append(delta)
                elif (custom := self._open.get(("custom_tool_call", id))) is not None:
                    frames += self._delta("custom_tool_call", id, custom.input.feed(delta), None)
                else:
                    frames += self._delta("function_call", id, delta, None)
            case TextMessageStart(message_id=id):
                frames += self._begin("message", id)
            case ReasoningMessageStart(message_id=id):
                frames += self._begin("reasoning", id)
            case ToolCallStart(tool_call_id=id, tool_call_name=name):
                frames += self._call_start(id, name)
            case TextMessageEnd(message_id=id):
                frames += self._end("message", id)
            case ReasoningMessageEnd(message_id=id):
                frames += self._end("reasoning", id)
            case ToolCallEnd(tool_call_id=id):
                frames += self._call_end(id, is_cut(event.metadata))
            case ReasoningEncryptedValue(subtype="message", entity_id=id, encrypted_value=value):
                seal = wrap(Seal(self._identity.thread_id, id, value))
                for item in (*self._ended, *self._open.values()):
                    if item.kind == "reasoning" and item.source == id:
                        item.sealed = seal
            case ToolCallResult(tool_call_id=id) if id in self._mcp_calls:
                frames += self._mcp_call(id, event)
            case Custom(name=name, value=listing) if name == MCP_TOOLS_EVENT:
                frames += self._mcp_tools(listing)
            case Custom(name=name) if name == COMPACTING_EVENT:
                # A summary is being written; its text is not sent.
                opening = b"" if _COMPACTION in self._open else self._begin(*_COMPACTION)
                frames += opening + self._of(self._open[_COMPACTION], "response.compaction.compacting")
            case ActivitySnapshot(activity_type=kind) if kind == COMPACTED_ACTIVITY and "sealed" in event.content:
                frames += b"" if _COMPACTION in self._open else self._begin(*_COMPACTION)
                item = self._open.pop(_COMPACTION)
                item.sealed = event.content["sealed"]
                done = self._output[item.index] = self._item(item, "completed")
                frames += self._frame("response.output_item.done", output_index=item.index, item=done)
            case RunStarted():
                frames += self._frame("response.created", response=self.response)
                if self._flags.background:
                    frames += self._frame("response.queued", response=self.response)
                self._state["status"] = "in_progress"
                frames += self._frame("response.in_progress", response=self.response)
            case RunFinished():
                frames += self._run_finished(event)
            case RunError():
                frames += self._run_failed(event)
            case _:
                pass
        return frames

    # ---- frames -----------------------------------------------------------------------------------------------------

    def _frame(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        if self._number <= self._after:
            return b""
        body = json_bytes({"type": kind, "sequence_number": self._number, **data})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _of(self, item: OutputItem, kind: str, **data: Any) -> bytes:
        return self._frame(kind, item_id=item.id, output_index=item.index, **data)

    def _begin(self, kind: Kind, source: str, name: str = "") -> bytes:
        item = OutputItem(kind, source, item_id(self._identity.id, kind, len(self._output)), len(self._output), name)
        self._open[kind, source] = item
        self._output.append(self._item(item, "in_progress"))
        frames = self._frame("response.output_item.added", output_index=item.index, item=self._output[item.index])
        if kind == "compaction":
            return frames
        if kind == "message":
            part: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            frames += self._of(item, "response.content_part.added", content_index=0, part=part)
        elif kind == "reasoning" and self._flags.summary:
            part = {"type": "summary_text", "text": ""}
            frames += self._of(item, "response.reasoning_summary_part.added", summary_index=0, part=part)
        elif kind == "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            frames += self._of(item, "response.content_part.added", content_index=0, part=part)
        delta_event, index_field, _ = self._names(item)
        place = b"" if kind in CALLS else b'"%b":0,' % index_field.encode()
        item.head = b'event: %b\ndata: {"type":"%b","item_id":%b,"output_index":%d,%b"delta":' % (
            delta_event.encode(),
            delta_event.encode(),
            json_string(item.id),
            item.index,
            place,
        )
        return frames

    def _names(self, item: OutputItem) -> tuple[str, str, str]:
        """Return (delta event, index field, done event) for an item's text."""
        if item.kind == "message":
            return "response.output_text.delta", "content_index", "response.output_text.done"
        if item.kind == "function_call":
            return "response.function_call_arguments.delta", "", "response.function_call_arguments.done"
        if item.kind == "custom_tool_call":
            return "response.custom_tool_call_input.delta", "", "response.custom_tool_call_input.done"
        if self._flags.summary:
            return (
                "response.reasoning_summary_text.delta", "summary_index", "response.reasoning_summary_text.done",
            )  # fmt: skip
        return "response.reasoning_text.delta", "content_index", "response.reasoning_text.done"

    def _delta(self, kind: Kind, source: str, delta: str, metadata: dict[str, Any] | None) -> bytes:
        item = self._open.get((kind, source))
        if item is None:
            return b""
        tokens = visible_tokens(metadata) if self._flags.logprobs is not None else ()
        if not delta and not tokens:
            return b""
        item.deltas.append(delta)
        item.tokens.extend(tokens)
        self._number += 1
        if self._number <= self._after:
            return b""
        logprobs = b""
        if kind == "message":
            logprobs = b',"logprobs":' + (json_bytes(self._logprobs(tokens)) if tokens else b"[]")
        return item.head + json_string(delta) + logprobs + b',"sequence_number":%d}\n\n' % self._number

    def _logprobs(self, tokens: Sequence[Scored]) -> list[dict[str, Any]]:
        return chat_logprobs(tokens, self._flags.logprobs or 0)

    def _call_start(self, source: str, name: str) -> bytes:
        if split_tool_name(name, self._flags.mcp) is not None:
            self._mcp_calls[source] = (name, [])
            return b""
        if name in self._identity.hidden_tools:
            return b""
        form = self._flags.forms.get(name, PLAIN)
        if form.item not in CALLS:
            self._whole_calls[source] = (name, [])
            return b""
        return self._begin(form.item, source, name)

    def _call_end(self, source: str, cut: bool) -> bytes:
        if source in self._mcp_calls:
            self._cut_call |= cut
            return self._mcp_call(source, None) if cut else b""
        if (whole_call := self._whole_calls.pop(source, None)) is not None:
            # Its item needs the complete arguments. If they do not fit the tool, the item becomes a function call, so
            # that nothing the model wrote is lost.
            name, arguments = whole_call[0], "".join(whole_call[1])
            form = self._flags.forms[name]
            fields = None if cut else call_item(form, arguments)
            if fields is None:
                begin = self._begin("function_call", source, name)
                delta = self._delta("function_call", source, arguments, None)
                self._open["function_call", source].cut = cut
                return begin + delta + self._end("function_call", source)
            index, kind = len(self._output), form.item
            encoded = {"id": item_id(self._identity.id, kind, index), "type": kind, "call_id": source, **fields}
            self._output.append({**encoded, "status": "completed"})
            added = {**encoded, "status": "in_progress"}
            return self._frame("response.output_item.added", output_index=index, item=added) + self._frame(
                "response.output_item.done", output_index=index, item=self._output[index]
            )
        if (item := self._open.get(("function_call", source))) is not None:
            item.cut = cut
            return self._end("function_call", source)
        if (item := self._open.get(("custom_tool_call", source))) is None:
            return b""
        item.cut = cut
        return self._delta("custom_tool_call", source, item.input.finish(), None) + self._end(
            "custom_tool_call", source
        )

    # ---- MCP servers that the request names -------------------------------------------------------------------------

    def _mcp_tools(self, listing: Mapping[str, Any]) -> bytes:
        """Encode the tools of an MCP server as an item."""
        if listing["label"] == SEARCH_LABEL:
            return b""
        index, error = len(self._output), listing.get("error")
        head = {"id": item_id(self._identity.id, "mcp_list_tools", index), "type": "mcp_list_tools"}
        item = {**head, "server_label": listing["label"], "tools": listing["tools"], "error": error}
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        return (
            self._frame("response.output_item.added", output_index=index, item={**item, "tools": [], "error": None})
            + self._frame("response.mcp_list_tools.in_progress", **place)
            + self._frame(f"response.mcp_list_tools.{'completed' if error is None else 'failed'}", **place)
            + self._frame("response.output_item.done", output_index=index, item=item)
        )

    def _mcp_call(self, source: str, result: ToolCallResult | None) -> bytes:
        """Encode an MCP call and its result as an item; before the result, the call may still need an approval.

        result: None for a call that the end of the output or of the run cut off.
        """
        name, pieces = self._mcp_calls.pop(source)
        label, tool = split_tool_name(name, self._flags.mcp) or ("", name)
        arguments, index = "".join(pieces), len(self._output)
        output = None if result is None else result.content if isinstance(result.content, str) else None
        if result is not None and output is None:
            output = json_bytes(result.content).decode()
        failed = result is not None and bool((result.metadata or {}).get("isError"))
        status = "incomplete" if result is None else "failed" if failed else "completed"
        search = label == SEARCH_LABEL
        kind: Kind = "web_search_call" if search else "mcp_call"
        item: dict[str, Any] = {"id": item_id(self._identity.id, kind, index), "type": kind, "status": status}
        if search:
            item["action"] = {"type": "search", "query": search_query(arguments)}
        else:
            item |= {"server_label": label, "name": tool, "arguments": arguments}
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output or ""}]}
            item |= {"output": None if failed else output, "error": error if failed else None}
        self._output.append(item)
        place = {"item_id": item["id"], "output_index": index}
        opened_item = {
            **item,
            "status": "in_progress",
            **({} if search else {"arguments": "", "output": None, "error": None}),
        }
        frames = self._frame("response.output_item.added", output_index=index, item=opened_item)
        frames += self._frame(f"response.{kind}.in_progress", **place)
        if not search:
            frames += self._frame("response.mcp_call_arguments.delta", delta=arguments, **place)
            frames += self._frame("response.mcp_call_arguments.done", arguments=arguments, **place)
        elif result is not None:
            frames += self._frame("response.web_search_call.searching", **place)
        if result is not None:
            frames += self._frame(f"response.{kind}.{'failed' if failed and not search else 'completed'}", **place)
        return frames + self._frame("response.output_item.done", output_index=index, item=item)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _end(self, kind: Kind, source: str) -> bytes:
        if (item := self._open.pop((kind, source), None)) is not None:
            self._ended.append(item)
        return b""

    def _close_ended(self, event: Event) -> bytes:
        """Close the items that ended before `event`. A call that was cut off is incomplete, and so is the last text of
        a run that was cut off."""
        cut = isinstance(event, RunError)
        if isinstance(event, RunFinished):
            cut = finish_reason(event) in ("length", "content_filter", "cancelled")
        frames = b""
        last = len(self._output) - 1
        for item in self._ended:
            incomplete = item.cut if item.kind in CALLS else cut and item.index == last
            self._cut_call |= item.cut
            done = self._output[item.index] = self._item(item, "incomplete" if incomplete else "completed")
            text = item.text
            _, field, kind = self._names(item)
            if item.cut:  # no `done` event for its arguments, since clients make the call when they receive it
                pass
            elif item.kind == "function_call":
                frames += self._of(item, kind, arguments=text, name=self._tool_name(item)["name"])
            elif item.kind == "custom_tool_call":
                frames += self._of(item, kind, input=text)
            elif item.kind == "message":
                logprobs = self._logprobs(item.tokens)
                frames += self._of(item, kind, content_index=0, text=text, logprobs=logprobs)
                frames += self._of(item, "response.content_part.done", content_index=0, part=done["content"][0])
            else:
                frames += self._of(item, kind, **{field: 0}, text=text)
                if self._flags.summary:
                    part_done, part_type = "response.reasoning_summary_part.done", "summary_text"
                else:
                    part_done, part_type = "response.content_part.done", "reasoning_text"
                frames += self._of(item, part_done, **{field: 0}, part={"type": part_type, "text": text})
            frames += self._frame("response.output_item.done", output_index=item.index, item=done)
        self._ended.clear()
        return frames

    def _item(self, item: OutputItem, status: str) -> dict[str, Any]:
        text = item.text
        is_complete = status != "in_progress"
        match item.kind:
            case "message":
                logprobs = self._logprobs(item.tokens)
                part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
                content = [part] if is_complete else []
                return {"id": item.id, "type": "message", "role": "assistant", "status": status, "content": content}
            case "function_call" | "custom_tool_call":
                return {
                    "id": item.id,
                    "type": item.kind,
                    "call_id": item.source,
                    **self._tool_name(item),
                    "arguments" if item.kind == "function_call" else "input": text,
                    "status": status,
                }
            case "compaction":
                return {"id": item.id, "type": "compaction", "encrypted_content": item.sealed or ""}
        reasoning: dict[str, Any] = {"id": item.id, "type": "reasoning", "status": status, "summary": [], "content": []}
        if is_complete and text:
            field = "summary" if self._flags.summary else "content"
            reasoning[field] = [{"type": "summary_text" if self._flags.summary else "reasoning_text", "text": text}]
        if self._flags.encrypted and item.sealed is not None:
            reasoning["encrypted_content"] = item.sealed
        return reasoning

    def _tool_name(self, item: OutputItem) -> dict[str, str]:
        form = self._flags.forms.get(item.name, PLAIN)
        return {"name": form.name, "namespace": form.namespace} if form.namespace else {"name": item.name}

    def _run_finished(self, event: RunFinished) -> bytes:
        frames, only_approvals = b"", False
        if isinstance(event.outcome, InterruptOutcome):
            only_approvals = all(each.tool_call_id in self._mcp_calls for each in event.outcome.interrupts)
            for each in event.outcome.interrupts:
                if each.tool_call_id not in self._mcp_calls:
                    continue
                name, pieces = self._mcp_calls.pop(each.tool_call_id or "")
                label, tool = split_tool_name(name, self._flags.mcp) or ("", name)
                head = {"id": f"{APPROVAL_PREFIX}{each.id}", "type": "mcp_approval_request"}
                item = {**head, "server_label": label, "name": tool, "arguments": "".join(pieces)}
                self._output.append(item)
                index = len(self._output) - 1
                frames += self._frame("response.output_item.added", output_index=index, item=item)
                frames += self._frame("response.output_item.done", output_index=index, item=item)
        for call_id in list(self._mcp_calls):
            frames += self._mcp_call(call_id, None)
        self._state["usage"] = usage_object(event.usage or ())
        self._state |= warning_extension(finished_metadata(event).warnings)
        # A run that only waits for approvals is complete.
        interrupted = isinstance(event.outcome, InterruptOutcome) and not only_approvals
        reason = finish_reason(event)
        if reason == "cancelled":
            self._state["status"] = "cancelled"
            return frames + self._frame("response.incomplete", response=self.response)
        if reason in _INCOMPLETE or self._cut_call or interrupted:
            why = _INCOMPLETE.get(reason, "stop" if self._cut_call else "interrupted")
            self._state |= {"status": "incomplete", "incomplete_details": {"reason": why}}
            return frames + self._frame("response.incomplete", response=self.response)
        seconds = finished_metadata(event).timings.total
        self._state |= {"status": "completed", "completed_at": self._identity.created + round(seconds or 0.0)}
        return frames + self._frame("response.completed", response=self.response)

    def _run_failed(self, event: RunError) -> bytes:
        if (item := self._open.pop(_COMPACTION, None)) is not None:  # the last item, and it is empty
            del self._output[item.index]
        code = _ERRORS.get(event.code or "", "server_error")
        self._state |= {
            "status": "cancelled" if event.code == "cancelled" else "failed",
            "error": {"code": code, "message": event.message},
            "usage": usage_object(event.usage) if event.usage else None,
        }
        return self._frame("response.failed", response=self.response)


_COMPACTION: tuple[Kind, str] = "compaction", ""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_KEEPS_OPEN = (ReasoningEncryptedValue, ReasoningEnd, ReasoningStart, TextMessageEnd, ToolCallEnd, ReasoningMessageEnd)


def response_object(
    events: Iterable[Event], identity: ResponseIdentity, flags: ResponseFlags = NO_FLAGS
) -> dict[str, Any]:
    """Return the response object as the stream has it after these events."""
    stream = ResponseStream(identity, flags)
    for event in events:
        stream.encode(event)
    return stream.response


# ---- over a WebSocket ----------------------------------------------------------------------------------------------

ENVELOPE = ("type", "event_id", "stream_id", "stream", "generate")
"""Fields that belong to the message, not to the request."""


class CreateResponse(NamedTuple):
    """Create a response. body: as for `POST /v1/responses`."""

    body: bytes


class ResponsesSession:
    """Responses over a WebSocket, as the SDK's `client.responses.connect()` uses it: messages to actions, and frames to
    messages.

    A `response.create` message has the fields of `POST /v1/responses`. The server sends the events of its stream, one
    per message.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, data: str | bytes) -> ReadMessage | RequestError:
        try:
            values = read_text(data, self._limits)
            if values.get("type") == "response.steer":
                raise wrong("type", "is response.steer; responses here cannot be steered, send response.create")
            if values.get("type") != "response.create":
                raise wrong("type", 'must be "response.create"')
            if values.get("generate") is False:
                raise wrong("generate", "must be true: a prompt is computed together with its answer")
        except RequestError as error:
            return error
        return ReadMessage(values["type"], {key: value for key, value in values.items() if key not in ENVELOPE})

    def take(self, read: ReadMessage | RequestError) -> Sequence[object]:
        return self.on_refused(read) if isinstance(read, RequestError) else [CreateResponse(json_bytes(read.fields))]

    def on_refused(self, error: RequestError) -> Sequence[object]:
        entry = row(error.kind)
        body = payload("openai", error.kind, error.message, param=error.param, code=error.code)
        actions: list[object] = [Send(json_bytes({"type": "error", "status": entry.status, **body}))]
        return [*actions, Close(entry.close, error.kind)] if error.kind in CLOSING else actions

    def frames(self, data: bytes) -> Sequence[object]:
        """Convert server-sent events to messages."""
        return [Send(frame["data"].encode()) for frame in sse.parse([data])] if data else []
