"""Build the structural tag that constrains one output: tools' JSON Schemas and response_format in the model's format.

Start reading here. `plan` chooses the shape of the output from tool_choice and response_format; `call_nodes` writes the
calls, `argument_values` the arguments that are not JSON, and `lark` turns the finished tag into llguidance's grammar.

Only this layer handles reasoning: the tag covers the whole output from its first token, so the backend needs no notion
of reasoning, and a trigger cannot fire within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from events.formats.fields import texts
from events.formats.output_format import OutputFormat, markers
from events.grammar.call_nodes import CallWriter, Function
from events.grammar.channel_nodes import channel_nodes, supports
from events.grammar.nodes import (
    EMPTY,
    SPACE,
    Alphabet,
    Node,
    constant,
    either,
    free,
    optional,
    pattern,
    sequence,
    split,
    star,
)
from events.options import ResponseFormat, ToolChoice
from events.parsing.syntax import FENCE

Stage = Literal["start", "reasoning", "content"]
GAP = pattern(r"\n{0,2}")
"""Line breaks that templates put after reasoning, and models after a call before they end."""
NOT_ENFORCED = "Tool calls of this model's format are validated, not enforced while they are generated."


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The constraint of one output.

    tag: the structural tag; None if nothing is enforced. calls: whether tool calls are enforced. call_list: what may
    follow the opening bracket of a list of calls without their markers (see `CallWriter.listed`) under tool_choice
    "auto"; None if such a list would not be read as calls. warnings: what the request asks for but the constraint does
    not enforce.
    """

    tag: dict[str, Any] | None = None
    calls: bool = False
    call_list: Node | None = None
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
    unmarked: bool = True,
) -> Plan:
    """Plan the constraint of one output.

    functions: the declared tools, which `choice` restricts. stage: what the prompt has already opened. marker_ids:
    text → id of every control token of the vocabulary. unmarked: the parser reads calls without their format's markers.
    Raises ValueError if the format cannot be written as a grammar.
    """
    alphabet = Alphabet(marker_ids)
    offered = []
    if choice.mode != "none":
        offered = [function for function in functions if not choice.names or function.name in choice.names]
    answer = None if response_format is None else _answer_node(response_format, alphabet)
    if not offered and answer is None:
        return Plan()
    if output_format.channels is not None:
        if not supports(output_format, alphabet) or stage != "start":
            warning = NOT_ENFORCED if offered else "The answer's shape is not enforced for this format."
            return Plan(warnings=(warning,))
        required = choice.mode in ("required", "named")
        node = channel_nodes(output_format, alphabet, offered, answer, required=required)
        return Plan(tag=_tag(node), calls=bool(offered))
    writer = CallWriter(output_format.tools, alphabet) if output_format.tools and offered else None
    if writer is not None and not writer.trigger and choice.mode == "auto":
        writer = None
    if writer is None:
        warnings = (NOT_ENFORCED,) if offered else ()
        if answer is None or (offered and choice.mode != "auto"):
            return Plan(warnings=warnings)
        body = _wrap(output_format, alphabet, answer)
        return _finish(output_format, alphabet, stage, body, warnings=warnings, exact=body == answer)
    section = _section(output_format, alphabet, writer, offered, parallel)
    if choice.mode != "auto":
        before, content = EMPTY, output_format.content
        if content.start and content.end and content.wrapped == "always":
            # Some models write an answer before calls even if it is empty (Kimi K3): allow both content markers, or
            # only the end if the prompt contains the start.
            ends = alphabet.literal(content.end[0].strip())
            whole = sequence(alphabet.literal(content.start[0].strip()), GAP, ends)
            before = optional(sequence(GAP, either(whole, ends)))
        # Models write the line break between two calls after the last one as well. Without a gap, that line break
        # would begin another call.
        calls = sequence(section, GAP) if parallel else section
        fenced = None
        if parallel and unmarked and writer.writes_lists:
            fenced = sequence(constant(f"{FENCE}json\n["), writer.listed(offered), GAP, constant(FENCE), GAP)
        return _finish(output_format, alphabet, stage, calls, before, alternative=fenced, calls=True)
    if answer is not None:
        body = either(_wrap(output_format, alphabet, answer), section)
        return _finish(output_format, alphabet, stage, body, calls=True)
    automatic = _automatic(output_format, alphabet, writer, offered, stage, parallel)
    if not (parallel and unmarked and writer.writes_lists) or stage == "reasoning":
        return automatic
    return msgspec.structs.replace(automatic, call_list=sequence(writer.listed(offered), free()))


def _tag(node: Node) -> dict[str, object]:
    return {"type": "structural_tag", "format": node}


def _finish(
    output_format: OutputFormat,
    alphabet: Alphabet,
    stage: Stage,
    body: Node,
    before: Node = EMPTY,
    *,
    alternative: Node | None = None,
    calls: bool = False,
    warnings: tuple[str, ...] = (),
    exact: bool = False,
) -> Plan:
    """Join the reasoning, the part `before` the body, and the body or its alternative into a plan.

    exact: the client specified `body`, including its white space. Otherwise it begins with a marker, and the white
    space in front of that marker may be missing or have up to two additional line breaks after other parts.
    """
    reasoning = _reasoning(output_format, alphabet, stage)
    more = 2 if reasoning != EMPTY or before != EMPTY or stage == "content" else 0
    if exact:
        between = GAP if more else EMPTY
    else:
        first, rest = split(body)
        text = first["value"] if first["type"] == "const_string" else ""
        stripped = text.lstrip()
        own = text[: len(text) - len(stripped)]
        space = " " if own.strip("\n") else ""
        between = pattern(f"[{space}\\n]{{0,{more + len(own)}}}") if more or own else EMPTY
        body = sequence(constant(stripped), rest) if own else body
        body = body if alternative is None else either(body, alternative)
    return Plan(tag=_tag(sequence(reasoning, before, between, body)), calls=calls, warnings=warnings)


def _section(
    output_format: OutputFormat, alphabet: Alphabet, writer: CallWriter, functions: list[Function], parallel: bool
) -> Node:
    """Return the node of the calls; in a format with addresses, each call is a message to its function."""
    if output_format.address is None:
        return writer.section(functions, parallel=parallel)
    before, behind = map(alphabet.literal, output_format.address)
    calls = [sequence(constant(each.name), behind, writer.section([each], parallel=False)) for each in functions]
    call = sequence(SPACE, before, either(*calls))
    if not parallel:
        return call
    ends = either(*map(alphabet.literal, output_format.content.end))
    return sequence(call, star(sequence(ends, _next_header(output_format, alphabet), call)))


def _next_header(output_format: OutputFormat, alphabet: Alphabet) -> Node:
    """Return the assistant's header for formats that repeat it before every part of their output."""
    header = output_format.message_start.strip()
    return optional(alphabet.literal(header)) if header in output_format.drop else EMPTY


def _reasoning(output_format: OutputFormat, alphabet: Alphabet, stage: Stage) -> Node:
    """Return the node of the reasoning: the rest of it if the prompt opens it, otherwise an optional whole one. Some
    models write only the end marker if they do not reason (MiniMax M3)."""
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


def _wrap(output_format: OutputFormat, alphabet: Alphabet, answer: Node) -> Node:
    """Enclose an answer in the content markers, if the format always writes them."""
    content = output_format.content
    if not content.start or content.wrapped != "always":
        return answer
    end = alphabet.literal(content.end[0]) if content.end else EMPTY
    space = SPACE if output_format.address else EMPTY
    return sequence(space, alphabet.literal(content.start[0]), answer, end)


def _answer_node(response_format: ResponseFormat, alphabet: Alphabet) -> Node:
    """Return the node of an answer in the requested response format."""
    match response_format.kind:
        case "json_object":
            return alphabet.json({"type": "object"})
        case "json_schema":
            return alphabet.json(response_format.value)
        case "regex":
            return pattern(response_format.value)
        case "choice":
            return either(*(constant(text) for text in response_format.value))
        case "grammar":
            syntax = "ebnf" if "::=" in response_format.value else "lark"
            return {"type": "grammar", "grammar": response_format.value, "syntax": syntax}
        case "structural_tag":
            # Clients also send the older form, with `structures` and `triggers`.
            value = response_format.value
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


def _automatic(
    output_format: OutputFormat,
    alphabet: Alphabet,
    writer: CallWriter,
    functions: list[Function],
    stage: Stage,
    parallel: bool,
) -> Plan:
    """Plan tool_choice "auto": free text until a call's marker, then only a valid call, then free text again."""
    sectioned = bool(writer.tools.section_start) and not writer.tools.repeats_section
    section = writer.section(functions, parallel=parallel and sectioned)
    head, _ = split(alphabet.literal(writer.trigger))
    trigger = head["token"] if head["type"] == "token" else head["value"]
    # Free text must not contain the tokens of tool calls or of the end of a turn. Markers of content and reasoning are
    # allowed, and the assistant's header if every part of the output has one.
    allowed = [*texts(output_format, "content", "reasoning")]
    header = output_format.message_start.strip()
    if header in output_format.drop:
        allowed.append(header)
    excluded = alphabet.tokens(texts(output_format, "calls", "turn")) - alphabet.tokens(allowed) - {trigger}
    if head["type"] == "token":
        marker_nodes = [alphabet.literal(marker) for marker in markers(output_format, "content", "reasoning")]
        other = [node for node in marker_nodes if split(node)[0] == head]
        tags = [_triggered_tag(head, _behind(section, head)), *(_triggered_tag(head, split(node)[1]) for node in other)]
        kind = {"type": "token_triggered_tags", "trigger_tokens": [trigger]}
    else:
        tags = [_triggered_tag(trigger, _behind(section, head))]
        kind = {"type": "triggered_tags", "triggers": [trigger]}
    body: Node = {**kind, "tags": tags, "exclude_tokens": sorted(excluded), "stop_after_first": not parallel}
    spec = output_format.reasoning
    interrupts = spec is not None and any(mark.strip() == writer.trigger for mark in spec.ended_by)
    reasoning = EMPTY if interrupts else _reasoning(output_format, alphabet, stage)
    return Plan(tag=_tag(sequence(reasoning, body)), calls=True)


def _behind(node: Node, head: Node) -> Node:
    """Return what follows the beginning `head` of a node, in each of its alternatives."""
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


def _triggered_tag(begin: str | Node, rest: Node) -> Node:
    """Return a tag whose end is the last marker of `rest`, since xgrammar requires an end for unbounded content."""
    *content, last = rest["elements"] if rest["type"] == "sequence" else [rest]
    if content and last["type"] == "const_string":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last["value"]}
    if content and last["type"] == "token":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last}
    return {"type": "tag", "begin": begin, "content": rest, "end": ""}


__all__ = ["NOT_ENFORCED", "Plan", "Stage", "plan"]
