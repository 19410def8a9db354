"""A call that is one JSON object: name, arguments and id under the format's keys or their usual synonyms, in any
order, on one level or within a wrapper."""

from __future__ import annotations

import json

from events.parsing.argument_context import NoCall
from events.parsing.arguments import stream
from events.parsing.json_text import JsonText
from events.parsing.open_call import IGNORED, ROLES, WRAPPERS, CutOff, OpenCall
from events.parsing.source import Reading

_KEY_LIMIT = 256


def read_json_call(call: OpenCall) -> Reading[None]:
    """The object that begins here. Arguments in front of the name are held until it is known."""
    source = call.source
    ends = call.syntax.scanner(*call.calls.ends)
    held: str | None = None
    depth = 0
    while True:
        char = yield from source.space(",")
        if char == "{" and not depth:
            source.position += 1
            depth = 1
        elif char == "}":
            source.position += 1
            depth -= 1
            if depth <= 0:
                break
        elif char not in ('"', "'") and (yield from source.ahead(ends)):
            break
        else:
            key = yield from _key(call)
            char = yield from source.space()
            role = _role(call, key, char)
            if role == "wrapper":
                source.position += 1
                depth += 1
            elif role == "arguments":
                held = yield from _arguments(call, char)
            else:
                yield from _member(call, role)
            if held and _ready(call):
                call.write(held)
                held = ""
            elif role in ("name", "id") and (yield from _goes_on(call)):
                call.write("")
    _check(call, held)
    if held or not call.begun:
        call.write(held or "{}")


def _check(call: OpenCall, held: str | None) -> None:
    required = call.tools.json.arguments_required or (call.unmarked and call.policy.tools is None)
    lacking = held is None and not call.begun and required
    if not call.name or lacking:
        raise NoCall("a call without a name or without arguments", incomplete=True)


def _goes_on(call: OpenCall) -> Reading[bool]:
    """Whether name and id of a marked call are both known and more of it follows: prose has no such beginning, so it
    is announced before its arguments begin."""
    if not (call.name and call.id and call.tools.json.id) or call.unmarked or call.announced:
        return False
    return (yield from call.source.space()) == ","


def _key(call: OpenCall) -> Reading[str]:
    """A key of the object, and the colon behind it."""
    source = call.source
    if (yield from source.peek()) in ('"', "'"):
        key = str(json.loads((yield from _value(call))))
    else:
        key, marker = yield from source.until(call.syntax.scanner(":", *call.calls.ends), _KEY_LIMIT)
        source.position -= len(marker)
    if not (yield from source.space()):
        raise CutOff
    if not (yield from source.match(call.syntax.scanner(":"))):
        raise NoCall("no colon behind a key")
    return key.strip()


def _role(call: OpenCall, key: str, char: str) -> str:
    """What the key's value is: name, id, arguments, a wrapper of them, or "" for anything else."""
    keys = call.tools.json
    if keys.name_is_key and not call.name and char == "{":
        call.declare(key)
        return "arguments"
    if char == "{" and (key in WRAPPERS or (keys.wrapper and key == keys.wrapper)):
        return "wrapper"
    own = {keys.name: "name", keys.arguments: "arguments", keys.id or "id": "id"}
    role = own.get(key) or ROLES.get(key, "")
    if role == "name" and char not in ('"', "'"):
        raise NoCall("the name is not a string", incomplete=True)
    if call.unmarked and not role and key not in IGNORED:
        raise NoCall("a key that no call has")
    return role


def _member(call: OpenCall, role: str) -> Reading[None]:
    value = json.loads((yield from _value(call)))
    if role == "name":
        if not value:
            raise NoCall("the name is empty")
        call.declare(str(value))
    elif role == "id":
        call.id = str(value)


def _arguments(call: OpenCall, char: str) -> Reading[str | None]:
    """The arguments: written as they come where the call may be announced, else returned. A string may hold them."""
    if char == "{":
        if not _ready(call):
            return (yield from _value(call))
        yield from stream(call, JsonText(stops=call.calls.ends, eager=True), verbatim=True)
        return ""
    value = json.loads((yield from _value(call)))
    if value is None:
        return "{}"
    try:
        inner = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        inner = None
    if not isinstance(inner, dict):
        raise NoCall("the arguments are not an object", incomplete=True)
    return str(value)


def _value(call: OpenCall) -> Reading[str]:
    """One JSON value, read to its end."""
    source, value = call.source, JsonText(stops=call.calls.ends)
    while True:
        source.position = value.consume(source.text, source.position, source.final)
        if value.failed or value.stopped:
            raise NoCall("no JSON value behind a key")
        if value.done:
            return value.output.take()
        if source.final:
            raise CutOff
        yield


def _ready(call: OpenCall) -> bool:
    """Whether the call may be announced: its name is known, and its id if the format writes one."""
    waits = bool(call.tools.json.id) and call.policy.wait_for_id and not call.id
    return bool(call.name) and not waits
