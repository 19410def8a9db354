"""Event streams at random: mostly legal, over a few ids so that they collide, with faults mixed in."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from events.encode import from_wire, to_wire
from events.lifecycle import LifecycleError, Verifier

Wire = dict[str, Any]

MESSAGES = ["m1", "m2", "m3", "x"]
CALLS = ["c1", "c2", "x"]
SUBAGENTS = ["s1", "s2", ""]
TEXTS = ["Hi", " there", "", "é😀", '{"a":', "1}", "\n"]


def random_stream(rng: random.Random, *, fault: float = 0.03, length: int = 30) -> list[Wire]:
    """A stream; with probability `fault` per event the next one is whatever comes, legal or not, and with 0 it is
    legal throughout."""
    verifier = Verifier()
    stream: list[Wire] = []
    for _ in range(rng.randint(2, length)):
        candidate = _candidate(rng, stream)
        if rng.random() >= fault:
            for _ in range(30):
                if _admitted(verifier, candidate):
                    break
                candidate = _candidate(rng, stream)
        if not fault and not _admitted(verifier, candidate):
            continue
        stream.append(candidate)
        if not _admitted(verifier, candidate):
            return [*stream, _run_finished(rng)]
        verifier.check(from_wire(candidate))
    if verifier.phase == "running":
        if rng.random() < 0.9:
            stream += [to_wire(event) for event in verifier.close_open()]
        stream.append(_run_finished(rng))
    return stream


def _admitted(verifier: Verifier, wire: Wire) -> bool:
    try:
        copy.deepcopy(verifier).check(from_wire(wire))
    except LifecycleError:
        return False
    return True


def _candidate(rng: random.Random, stream: list[Wire]) -> Wire:
    if not stream and rng.random() < 0.97:
        return _run_started(rng)
    wire = rng.choices([make for make, _ in _MAKERS], [weight for _, weight in _MAKERS])[0](rng)
    if rng.random() < 0.15:
        wire["metadata"] = {rng.choice("ab"): rng.choice([None, 1, {"deep": [1.5]}])}
    if rng.random() < 0.03:
        wire["rawEvent"] = {"provider": "x"}
    if rng.random() < 0.1:
        wire["timestamp"] = rng.randint(0, 10**13)
    return wire


def _tag(rng: random.Random) -> Wire:
    return {"subagentRunId": rng.choice(SUBAGENTS)} if rng.random() < 0.15 else {}


def _run_started(rng: random.Random) -> Wire:
    wire: Wire = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
    if rng.random() < 0.2:
        messages = [_message(rng, name) for name in rng.sample(MESSAGES, 2)]
        wire["input"] = {"threadId": "t", "runId": "r", "messages": messages}
    return wire


def _run_finished(rng: random.Random) -> Wire:
    wire: Wire = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
    outcomes: list[Wire | None] = [None, None, {"type": "success"}, {"type": "cancelled"}]
    outcomes += [{"type": "interrupt", "interrupts": [{"id": "i", "reason": "tool_call"}]}]
    outcome = rng.choice(outcomes)
    return wire if outcome is None else wire | {"outcome": outcome}


def _message(rng: random.Random, name: str) -> Wire:
    role = rng.choice(["user", "assistant", "reasoning", "activity", "tool", "system"])
    if role == "activity":
        return {"id": name, "role": role, "activityType": "plan", "content": {"n": 1}}
    message: Wire = {"id": name, "role": role, "content": rng.choice(TEXTS)}
    if role == "tool":
        message["toolCallId"] = rng.choice(CALLS)
    if role == "assistant" and rng.random() < 0.4:
        function = {"name": "f", "arguments": "{}"}
        message["toolCalls"] = [{"id": rng.choice(CALLS), "type": "function", "function": function}]
    return message | _tag(rng)


def _snapshot(rng: random.Random) -> Wire:
    names = rng.sample(MESSAGES, rng.randint(0, 3))
    return {"type": "MESSAGES_SNAPSHOT", "messages": [_message(rng, name) for name in names]}


def _text(kind: str) -> Callable[[random.Random], Wire]:
    def make(rng: random.Random) -> Wire:
        wire: Wire = {"type": kind, "messageId": rng.choice(MESSAGES), **_tag(rng)}
        if kind.endswith("CONTENT"):
            wire["delta"] = rng.choice(TEXTS)
        if kind == "TEXT_MESSAGE_START" and rng.random() < 0.5:
            wire |= {"role": rng.choice(["assistant", "user"]), "name": "n"}
        if kind == "REASONING_MESSAGE_START":
            wire["role"] = "reasoning"
        return wire

    return make


def _chunk(kind: str, key: str) -> Callable[[random.Random], Wire]:
    def make(rng: random.Random) -> Wire:
        wire: Wire = {"type": kind, **_tag(rng)}
        if rng.random() < 0.5:
            wire[key] = rng.choice(CALLS if key == "toolCallId" else MESSAGES)
        if rng.random() < 0.8:
            wire["delta"] = rng.choice(TEXTS)
        if kind == "TEXT_MESSAGE_CHUNK" and rng.random() < 0.3:
            wire["role"] = rng.choice(["assistant", "user"])
        if kind == "TOOL_CALL_CHUNK" and rng.random() < 0.7:
            wire["toolCallName"] = rng.choice("fg")
        if kind == "TOOL_CALL_CHUNK" and rng.random() < 0.3:
            wire["parentMessageId"] = rng.choice(MESSAGES)
        return wire

    return make


def _call(kind: str) -> Callable[[random.Random], Wire]:
    def make(rng: random.Random) -> Wire:
        wire: Wire = {"type": kind, "toolCallId": rng.choice(CALLS), **_tag(rng)}
        if kind == "TOOL_CALL_START":
            wire["toolCallName"] = rng.choice("fg")
            if rng.random() < 0.5:
                wire["parentMessageId"] = rng.choice(MESSAGES)
        if kind == "TOOL_CALL_ARGS":
            wire["delta"] = rng.choice(TEXTS)
        return wire

    return make


def _result(rng: random.Random) -> Wire:
    content: Any = rng.choice(["ok", [{"type": "text", "text": "ok"}]])
    name = rng.choice([*MESSAGES, "r1", "r2", "r3", "r4"])
    return {"type": "TOOL_CALL_RESULT", "messageId": name, "toolCallId": rng.choice(CALLS), "content": content} | _tag(
        rng
    )


def _encrypted(rng: random.Random) -> Wire:
    subtype = rng.choice(["message", "tool-call"])
    entity = rng.choice(MESSAGES + CALLS)
    return {
        "type": "REASONING_ENCRYPTED_VALUE", "subtype": subtype, "entityId": entity, "encryptedValue": "v",
    } | _tag(rng)  # fmt: skip


def _step(kind: str) -> Callable[[random.Random], Wire]:
    return lambda rng: {"type": kind, "stepName": rng.choice("ab"), **_tag(rng)}


def _subagent(kind: str) -> Callable[[random.Random], Wire]:
    def make(rng: random.Random) -> Wire:
        wire: Wire = {"type": kind, "subagentRunId": rng.choice(SUBAGENTS)}
        if kind == "SUBAGENT_STARTED":
            wire["name"] = "helper"
            if rng.random() < 0.3:
                wire["parentSubagentRunId"] = rng.choice(SUBAGENTS)
        if kind == "SUBAGENT_ERROR":
            wire["message"] = "broke"
        return wire

    return make


def random_operation(rng: random.Random) -> Wire:
    """The whole document is only ever replaced by an object or array: on a bare number or string the client's patch
    library lets JavaScript ignore what RFC 6902 makes an error."""
    pointers = ["/a", "/a/0", "/a/1", "/a/-", "/b", "/b/c", "/b/c/d", "/a/01", "/~1", "/b/~0"]
    op = rng.choice(["add", "add", "add", "replace", "remove", "test", "copy", "move", "whole"])
    if op == "whole":
        return {"op": rng.choice(["add", "replace", "test"]), "path": "", "value": rng.choice([{}, {"a": [1]}, [1]])}
    wire: Wire = {"op": op, "path": rng.choice(pointers)}
    if op in ("copy", "move"):
        wire["from"] = rng.choice(pointers)
    elif op != "remove":
        wire["value"] = rng.choice([None, 1, 1.0, True, "s", [1, 2], {"c": 1}, {"c": {"d": []}}])
    return wire


def _state(rng: random.Random) -> Wire:
    if rng.random() < 0.3:
        return {"type": "STATE_SNAPSHOT", "snapshot": rng.choice([{}, {"a": [1, 2], "b": {"c": 1}}, [1]])}
    return {"type": "STATE_DELTA", "delta": [random_operation(rng) for _ in range(rng.randint(0, 3))]}


def _activity(rng: random.Random) -> Wire:
    wire: Wire = {
        "messageId": rng.choice([*MESSAGES, "a1"]),
        "activityType": rng.choice(["plan", "search"]),
        **_tag(rng),
    }
    if rng.random() < 0.5:
        wire |= {"type": "ACTIVITY_SNAPSHOT", "content": {"a": [1]}}
        return wire | ({"replace": rng.random() < 0.5} if rng.random() < 0.5 else {})
    return wire | {"type": "ACTIVITY_DELTA", "patch": [random_operation(rng) | {"path": "/a/-"}]}


_MAKERS: list[tuple[Callable[[random.Random], Wire], float]] = [
    (_run_started, 1), (_run_finished, 1), (lambda rng: {"type": "RUN_ERROR", "message": "broke"}, 1),
    *((_text(f"TEXT_MESSAGE_{part}"), weight) for part, weight in (("START", 4), ("CONTENT", 8), ("END", 4))),
    *((_text(f"REASONING_MESSAGE_{part}"), weight) for part, weight in (("START", 3), ("CONTENT", 4), ("END", 3))),
    (_text("REASONING_START"), 3), (_text("REASONING_END"), 3), (_encrypted, 3),
    (_chunk("TEXT_MESSAGE_CHUNK", "messageId"), 8), (_chunk("REASONING_MESSAGE_CHUNK", "messageId"), 5),
    (_chunk("TOOL_CALL_CHUNK", "toolCallId"), 8),
    *((_call(f"TOOL_CALL_{part}"), weight) for part, weight in (("START", 5), ("ARGS", 6), ("END", 4))),
    (_result, 4), (_step("STEP_STARTED"), 3), (_step("STEP_FINISHED"), 3),
    *((_subagent(f"SUBAGENT_{part}"), weight) for part, weight in (("STARTED", 3), ("FINISHED", 2), ("ERROR", 1))),
    (_state, 6), (_activity, 5), (_snapshot, 3),
    (lambda rng: {"type": "RAW", "event": None}, 2), (lambda rng: {"type": "CUSTOM", "name": "n", "value": 1}, 2),
]  # fmt: skip


_OPENERS = {
    "TEXT_MESSAGE_": {"type": "TEXT_MESSAGE_START"},
    "TOOL_CALL_": {"type": "TOOL_CALL_START", "toolCallName": "f"},
    "REASONING_MESSAGE_": {"type": "REASONING_MESSAGE_START", "role": "reasoning"},
    "REASONING_": {"type": "REASONING_START"},
    "STEP_": {"type": "STEP_STARTED"},
    "SUBAGENT_": {"type": "SUBAGENT_STARTED", "name": "helper"},
}
_CONTINUES = ("_CONTENT", "_ARGS", "_END", "_FINISHED", "_ERROR")
_SCALARS: list[Any] = [None, 5, 1.5, "x", True, [], {}, [5], ["x"], [None], {"type": "x"}, [{"type": "x"}], [{"id": 5}]]


def mutated(rng: random.Random, wire: Wire) -> list[Wire]:
    """A stream that is legal up to `wire`, of which one member was removed, added or given another value."""
    stream: list[Wire] = (
        [] if wire["type"] == "RUN_STARTED" else [{"type": "RUN_STARTED", "threadId": "t", "runId": "r"}]
    )
    opener = next((opener for prefix, opener in _OPENERS.items() if wire["type"].startswith(prefix)), None)
    if opener and wire["type"].endswith(_CONTINUES):
        names = {"messageId", "toolCallId", "stepName", "subagentRunId"}
        stream.append(opener | {name: value for name, value in wire.items() if name in names})
    changed = copy.deepcopy(wire)
    target = _some_object(rng, changed)
    what = rng.random()
    if what < 0.2 and len(target) > 1:
        del target[rng.choice(list(target))]
    elif what < 0.3:
        target["unknownMember"] = rng.choice(_SCALARS)
    elif what < 0.95:
        target[rng.choice([*target, "metadata", "timestamp", "rawEvent"])] = rng.choice(_SCALARS)
    return [*stream, changed]


def _some_object(rng: random.Random, wire: Wire) -> Wire:
    """The event itself, or now and then an object inside it that the protocol describes."""
    inside = [wire]
    for key in ("messages", "delta", "patch", "usage", "content", "outcome", "input"):
        value = wire.get(key)
        inside += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict) and item]
    return rng.choice(inside) if rng.random() < 0.4 else wire
