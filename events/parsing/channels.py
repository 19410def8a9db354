"""Outputs of messages whose headers determine the kind of their bodies: `start` HEADER `header_end` BODY `end`.

See `events.formats.output_format.Channels`. A body is read like any other text, or as the call that its header names.
"""

from __future__ import annotations

from typing import NamedTuple

from events.formats.output_format import Channels
from events.parsing.source import Reading
from events.parsing.text_reader import TextReader

_HEADER_LIMIT = 256
_ROLES = frozenset({"assistant", "user", "all"})
_BLANKS = (" ", "\n", "\t", "\r")


class Destination(NamedTuple):
    """The kind of a body. to: "content", "reasoning", "call" (of `name`), "text" (a call's only argument), "drop"; ""
    if there is no valid header."""

    to: str
    name: str = ""


def read_channels(reader: TextReader) -> Reading[None]:
    """Read messages, and text outside of them, which is content."""
    channels = reader.format.channels
    assert channels is not None
    source = reader.source
    names = tuple(route.header for route in channels.routes if route.header.isalpha())
    outside = reader.syntax.scanner(*channels.start, *channels.header_end, *channels.end, *reader.format.drop)
    # The prompt has opened a header; its rest is a recipient, or a word before a marker.
    if channels.recipient:
        blank = yield from source.blank()
        addressed = yield from source.ahead(reader.syntax.scanner(channels.recipient))
        source.unread(blank)
        if addressed:
            yield from _header(reader, channels, "")
    elif channels.starts_in_header:
        text, marker = yield from source.until(
            reader.syntax.scanner(*channels.header_end, *channels.start, *channels.end, *_BLANKS), _HEADER_LIMIT
        )
        if marker in channels.header_end:
            yield from _body(reader, channels, text + marker, marker)
        else:
            source.unread(text + marker)
    while True:
        marker = yield from reader.text(outside)
        if not marker:
            return
        reader.mark(marker)
        if marker in channels.start:
            yield from _header(reader, channels, marker)
        elif marker in channels.header_end:
            yield from _body(reader, channels, marker, marker)
        # A channel's name between two messages, directly before the next header, is left out.
        name = (yield from source.match(reader.syntax.scanner(*names))) if names else ""
        if name and not (yield from source.ahead(reader.syntax.scanner(*channels.start))):
            source.unread(name)


def _header(reader: TextReader, channels: Channels, start: str) -> Reading[None]:
    """Read the header after `start` and its message. Text that cannot be a header is content, except for the prompt's
    part."""
    source = reader.source
    prompted = source.text[source.position :] if reader.output.written_by == "prompt, silently" else ""
    marks = reader.syntax.scanner(*channels.start, *channels.header_end, *channels.end)
    header, last = start, start
    while True:
        text, marker = yield from source.until(marks, _HEADER_LIMIT)
        header, last = header + text, last + text
        if marker in channels.header_end:
            yield from _body(reader, channels, header + marker, (last if text else "") + marker)
            return
        if marker in channels.end or not marker:
            body = "" if prompted else _body_in_header(channels, header, text)
            if body and not (source.final and source.cut):  # the end of the header is missing
                source.unread(body + marker)
                yield from _body(reader, channels, header.removesuffix(body), channels.header_end[0])
                return
            # The model's text, without the prompt's part and without the model's own role.
            text = header.removeprefix(start + prompted) if prompted else header
            if channels.recipient and not prompted:
                text = header.removeprefix(start)
                text = text.removeprefix(next((role for role in _ROLES if text.startswith(role)), ""))
            # At the end it is text only if it cannot be a header that was cut off.
            words = (*_ROLES, *(route.header for route in channels.routes), channels.recipient)
            begins_header = any(word.startswith(text.strip()) for word in words)
            is_answer = bool(channels.recipient) and not begins_header and channels.recipient not in text
            if (not marker and not source.final) or (header == last and is_answer):
                reader.output.write(text)
            return
        header, last = header + marker, marker


def _body_in_header(channels: Channels, header: str, text: str) -> str:
    """Return the body that follows a header without its end: a call's object, or what follows a route's name; "" if
    there is none. text: the header from its last marker on."""
    if not channels.recipient:
        return ""
    if channels.recipient in header:
        return text[text.find("{") :] if "{" in text else ""
    names = [route.header for route in channels.routes if text.strip().startswith(route.header)]
    return text.partition(names[0])[2].lstrip() if names else ""


def _destination(reader: TextReader, channels: Channels, header: str) -> Destination:
    """Return the function that the header names, or else its last route."""
    name = ""
    if channels.recipient and channels.recipient in header:
        name = header.rpartition(channels.recipient)[2]
        for marker in filter(None, (*channels.start, *channels.header_end, channels.content_type, "<")):
            name = name.partition(marker)[0]
        name = (name.split() or [""])[0]
    declared = reader.policy.tools
    if name and name not in _ROLES:
        # A recipient outside of the namespace is a tool built into the model, unless the request declares it.
        short = name.removeprefix(channels.namespace) if channels.namespace else name
        if short != name or not channels.namespace or (declared and name in declared):
            return Destination("call", short)
        return Destination("drop")
    routes = [(header.rfind(route.header), route.to) for route in channels.routes if route.header in header]
    if not routes and channels.named:
        name = _bare_name(channels, header)
        is_tool = name.isidentifier() if declared is None else name in declared
        return Destination("call", name) if is_tool else Destination("")
    if not routes:
        return Destination("content")
    return Destination(max(routes, key=lambda route: route[0])[1])


def _bare_name(channels: Channels, header: str) -> str:
    for marker in (*channels.start, *channels.header_end):
        header = header.replace(marker, "")
    return header.strip()


def _body(reader: TextReader, channels: Channels, header: str, last: str) -> Reading[None]:
    """Read the body after a header. last: the header from its last marker on, which is shown if the body is shown with
    its markup."""
    to, name = _destination(reader, channels, header)
    if to in ("call", "text") and reader.calls is None:
        reader.output.enter("content")
        reader.output.show(last if to == "call" else header)
        end = yield from reader.text(reader.syntax.scanner(*channels.end))
        reader.output.show(end)
        return
    if to == "text":
        # A call whose only argument is the body's text. Without a function name in the header it is not a call.
        reader.output.enter("content")
        no_call = yield from reader.read_text_message(_bare_name(channels, header), header)
        reader.output.show(no_call or "")
        return
    # A new header may directly follow a body without an end marker.
    other_bodies = channels.header_end if len(channels.header_end) > 1 else ()
    ends = (*channels.end, *(channels.start if channels.start_ends_body else ()), *other_bodies)
    if to == "call":
        # Read a call. Otherwise show the body, unless a call follows in the same message.
        reader.output.enter("content")
        again = reader.syntax.scanner(*channels.header_end)
        before = reader.output.calls
        no_call = yield from reader.read_message(name, header)
        while no_call is not None and (marker := (yield from reader.source.match(again))):
            more = yield from reader.read_message("", marker)
            no_call = None if reader.output.calls > before else no_call + (more or "")
        reader.output.show(no_call or "")
        return
    raw = to == "reasoning" and not reader.policy.extract_reasoning
    reader.output.enter("reasoning" if to == "reasoning" and not raw else "content")
    reader.mark(header)
    raw = raw and channels.markup
    if raw:
        reader.output.show(last)
    elif to == "":
        reader.output.write(header)
    body_end = reader.syntax.scanner(*ends, *reader.format.drop)
    if to == "drop":
        while True:
            _, end = yield from reader.source.until(body_end, _HEADER_LIMIT)
            if end or reader.source.final:
                break
    else:
        end = yield from reader.text(body_end)
    # The next message's own marker is read again.
    if end in channels.start or end in other_bodies:
        reader.source.position -= len(end)
    elif raw:
        reader.output.show(end)
    reader.output.enter("content")
