"""OutputFormat + tools + tool_choice + response_format + where the output starts → one structural tag.

Exactly one layer owns the reasoning: this one. The tag covers the whole output from its first token, so the backend
needs no notion of thinking, and a trigger cannot fire inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from events.formats.fields import texts
from events.formats.output_format import OutputFormat, markers
from events.grammar.call_nodes import CallWriter, Function
from events.grammar.channel_nodes import channel_plan, supports
from events.grammar.nodes import (
    EMPTY,
    SPACE,
    Alphabet,
    Node,
    constant,
    either,
    optional,
    pattern,
    sequence,
    split,
    star,
)
from events.options import ResponseFormat, ToolChoice

Stage = Literal["start", "reasoning", "content"]
GAP = pattern(r"\n{0,2}")
"""Line breaks that templates put between reasoning and what follows, and models behind a call before they end."""
NOT_ENFORCED = "Tool calls of this model's format are validated, not enforced while they are generated."


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`tag` is the structural tag, None when nothing is to be enforced. `calls`: whether calls are. `warnings`: what
    was asked and is not."""

    tag: dict[str, Any] | None = None
    calls: bool = False
    warnings: tuple[str, ...] = ()


def plan(
    output_format: OutputFormat,
    *,
    functions: Sequence[Function],
    choice: ToolChoice,
    parallel: bool,
    response_format: ResponseFormat | None,
    stage: Stage,
    marker_ids: Mapping[str, int],
) -> Plan:
    """What the output must look like. `functions` are the declared tools; `choice` narrows them. `marker_ids`: text →
    id of every control token of the vocabulary."""
    alphabet = Alphabet(marker_ids)
    wanted = chosen(functions, choice)
    answer = None if response_format is None else _shape(response_format, alphabet)
    if not wanted and answer is None:
        return Plan()
    if output_format.channels is not None:
        return _channels(output_format, alphabet, wanted, choice, answer, stage, parallel)
    writer = CallWriter(output_format.tools, alphabet) if output_format.tools and wanted else None
    if writer is not None and not writer.trigger and choice.mode == "auto":
        writer = None
    if writer is None:
        warnings = (NOT_ENFORCED,) if wanted else ()
        if answer is None or (wanted and choice.mode != "auto"):
            return Plan(warnings=warnings)
        body = _wrapped(output_format, alphabet, answer)
        return _finish(output_format, alphabet, stage, body, warnings=warnings, exact=body == answer)
    section = _section(output_format, alphabet, writer, wanted, parallel)
    if choice.mode != "auto":
        before = _empty_answer(output_format, alphabet)
        # Models write the line break that stands between two calls behind the last one too. Without a gap there that
        # line break would begin another call.
        calls = sequence(section, GAP) if parallel else section
        return _finish(output_format, alphabet, stage, calls, before, calls=True)
    if answer is not None:
        body = either(_wrapped(output_format, alphabet, answer), section)
        return _finish(output_format, alphabet, stage, body, calls=True)
    return _automatic(output_format, alphabet, writer, wanted, stage, parallel)


def chosen(functions: Sequence[Function], choice: ToolChoice) -> list[Function]:
    if choice.mode == "none":
        return []
    return [function for function in functions if not choice.names or function.name in choice.names]


def _tag(node: Node) -> dict[str, object]:
    return {"type": "structural_tag", "format": node}


def _channels(
    output_format: OutputFormat,
    alphabet: Alphabet,
    wanted: list[Function],
    choice: ToolChoice,
    answer: Node | None,
    stage: Stage,
    parallel: bool,
) -> Plan:
    if not supports(output_format, alphabet) or stage != "start":
        return Plan(warnings=(NOT_ENFORCED,) if wanted else ("The answer's shape is not enforced for this format.",))
    node = channel_plan(output_format, alphabet, wanted, answer, required=choice.mode in ("required", "named"))
    return Plan(tag=_tag(node), calls=bool(wanted))


def _finish(
    output_format: OutputFormat,
    alphabet: Alphabet,
    stage: Stage,
    body: Node,
    before: Node = EMPTY,
    *,
    calls: bool = False,
    warnings: tuple[str, ...] = (),
    exact: bool = False,
) -> Plan:
    """exact: `body` is what a client asked for, whose white space belongs to it; else it begins with a marker, whose
    white space models may leave out."""
    reasoning = _reasoning(output_format, alphabet, stage)
    behind = reasoning != EMPTY or before != EMPTY or stage == "content"
    more = 2 if behind else 0
    between, body = (GAP if more else EMPTY, body) if exact else _gap(body, more)
    return Plan(tag=_tag(sequence(reasoning, before, between, body)), calls=calls, warnings=warnings)


def _empty_answer(output_format: OutputFormat, alphabet: Alphabet) -> Node:
    """The markers around content with nothing between them, or the last alone where the prompt wrote the first: some
    models always write an answer in front of calls (Kimi K3)."""
    content = output_format.content
    if not content.start or not content.end or content.wrapped != "always":
        return EMPTY
    ends = alphabet.literal(content.end[0].strip())
    whole = sequence(alphabet.literal(content.start[0].strip()), GAP, ends)
    return optional(sequence(GAP, either(whole, ends)))


def _section(
    output_format: OutputFormat, alphabet: Alphabet, writer: CallWriter, wanted: list[Function], parallel: bool
) -> Node:
    """The calls; in a format with addresses, each in a message to its function."""
    if output_format.address is None:
        return writer.section(wanted, parallel=parallel)
    before, behind = map(alphabet.literal, output_format.address)
    calls = [sequence(constant(each.name), behind, writer.section([each], parallel=False)) for each in wanted]
    call = sequence(SPACE, before, either(*calls))
    if not parallel:
        return call
    ends = either(*map(alphabet.literal, output_format.content.end))
    return sequence(call, star(sequence(ends, _next_header(output_format, alphabet), call)))


def _next_header(output_format: OutputFormat, alphabet: Alphabet) -> Node:
    """The assistant's header, in a format that writes it again in front of every part of its output."""
    header = output_format.message_start.strip()
    return optional(alphabet.literal(header)) if header in output_format.drop else EMPTY


def _gap(body: Node, more: int) -> tuple[Node, Node]:
    """The white space in front of `body` and the rest of it: what it begins with itself, which may be missing, and up
    to `more` line breaks."""
    first, rest = split(body)
    text = first["value"] if first["type"] == "const_string" else ""
    kept = text.lstrip()
    own = text[: len(text) - len(kept)]
    gap = pattern(f"[{' ' if own.strip(chr(10)) else ''}\\n]{{0,{more + len(own)}}}") if more or own else EMPTY
    return gap, sequence(constant(kept), rest) if own else body


def _reasoning(output_format: OutputFormat, alphabet: Alphabet, stage: Stage) -> Node:
    """The rest of the reasoning if the prompt opened it, the whole of it or none if the model may open it; some write
    its end alone for none (MiniMax M3)."""
    spec = output_format.reasoning
    if spec is None or not spec.end or stage == "content":
        return EMPTY
    rest = sequence(alphabet.until(spec.end), _next_header(output_format, alphabet))
    if stage == "reasoning":
        return rest
    if not spec.start:
        return EMPTY
    begins = spec.start[0].strip()
    own = spec.start[0][: spec.start[0].find(begins)]
    space = SPACE if output_format.address else optional(constant(own))
    whole = sequence(space, alphabet.literal(begins), rest)
    return optional(either(whole, alphabet.literal(spec.end[0].strip())))


def _wrapped(output_format: OutputFormat, alphabet: Alphabet, answer: Node) -> Node:
    """An answer within the markers that the format always puts around content."""
    content = output_format.content
    if not content.start or content.wrapped != "always":
        return answer
    end = alphabet.literal(content.end[0]) if content.end else EMPTY
    space = SPACE if output_format.address else EMPTY
    return sequence(space, alphabet.literal(content.start[0]), answer, end)


def _shape(wanted: ResponseFormat, alphabet: Alphabet) -> Node:
    match wanted.kind:
        case "json_object":
            return alphabet.json({"type": "object"})
        case "json_schema":
            return alphabet.json(wanted.value)
        case "regex":
            return pattern(wanted.value)
        case "choice":
            return either(*(constant(text) for text in wanted.value))
        case "grammar":
            syntax = "ebnf" if "::=" in wanted.value else "lark"
            return {"type": "grammar", "grammar": wanted.value, "syntax": syntax}
        case "structural_tag":
            # A structural tag of the client's own, also in the older form: structures behind triggers.
            value = wanted.value
            if "structures" not in value:
                return dict(value.get("format") or value)
            tags = [
                {
                    "type": "tag",
                    "begin": each["begin"],
                    "content": {"type": "json_schema", "json_schema": each["schema"]},
                    "end": each["end"],
                }
                for each in value["structures"]
            ]
            return {"type": "triggered_tags", "triggers": list(value.get("triggers", ())), "tags": tags}


# free text with calls in it


def _automatic(
    output_format: OutputFormat,
    alphabet: Alphabet,
    writer: CallWriter,
    wanted: list[Function],
    stage: Stage,
    parallel: bool,
) -> Plan:
    """Free text until a call's marker, then nothing but a legal call; free text again after it."""
    sectioned = bool(writer.tools.section_start) and not writer.tools.repeats_section
    section = writer.section(wanted, parallel=parallel and sectioned)
    head, _ = split(alphabet.literal(writer.trigger))
    trigger = head["token"] if head["type"] == "token" else head["value"]
    excluded = _excluded(output_format, alphabet) - {trigger}
    if head["type"] == "token":
        other = [node for node in _other_markers(output_format, alphabet) if split(node)[0] == head]
        tags = [_triggered(head, _behind(section, head)), *(_triggered(head, split(node)[1]) for node in other)]
        kind = {"type": "token_triggered_tags", "trigger_tokens": [trigger]}
    else:
        tags = [_triggered(trigger, _behind(section, head))]
        kind = {"type": "triggered_tags", "triggers": [trigger]}
    body: Node = {**kind, "tags": tags, "exclude_tokens": sorted(excluded), "stop_after_first": not parallel}
    spec = output_format.reasoning
    interrupts = spec is not None and any(mark.strip() == writer.trigger for mark in spec.ended_by)
    reasoning = EMPTY if interrupts else _reasoning(output_format, alphabet, stage)
    return Plan(tag=_tag(sequence(reasoning, body)), calls=True)


def _excluded(output_format: OutputFormat, alphabet: Alphabet) -> set[int]:
    """Tokens that free text must not hold: those of tool calls, and what ends a turn. Markers of content and
    reasoning may stand in it, and the assistant's header where each part of the output has one."""
    own, allowed = texts(output_format, "calls", "turn"), texts(output_format, "content", "reasoning")
    header = output_format.message_start.strip()
    return alphabet.tokens(own) - alphabet.tokens([*allowed, header] if header in output_format.drop else allowed)


def _other_markers(output_format: OutputFormat, alphabet: Alphabet) -> list[Node]:
    return [alphabet.literal(marker) for marker in markers(output_format, "content", "reasoning")]


def _behind(node: Node, head: Node) -> Node:
    """What follows `head`, the node's beginning, in each of its alternatives."""
    match node["type"]:
        case "sequence":
            first, rest = split(node)
            if first["type"] == "const_string" and head["type"] == "token" and not first["value"].strip():
                return _behind(rest, head)
            return sequence(_behind(first, head), rest)
        case "or":
            return either(*(_behind(part, head) for part in node["elements"]))
        case "const_string" if head["type"] == "const_string":
            return constant(node["value"].lstrip().removeprefix(head["value"]))
        case "token" if node == head:
            return EMPTY
        case "repeat" | "star":
            return node
    raise ValueError(f"a call does not begin with its marker: {node['type']}")


def _triggered(begin: str | Node, rest: Node) -> Node:
    """A tag whose end is the last marker of `rest`: xgrammar wants one where the content has no bound."""
    *content, last = rest["elements"] if rest["type"] == "sequence" else [rest]
    if content and last["type"] == "const_string":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last["value"]}
    if content and last["type"] == "token":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last}
    return {"type": "tag", "begin": begin, "content": rest, "end": ""}


__all__ = ["NOT_ENFORCED", "Plan", "Stage", "chosen", "plan"]
