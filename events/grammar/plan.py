"""OutputFormat + tools + tool_choice + response_format + where the output starts → one structural tag.

Exactly one layer owns the reasoning: this one. The tag covers the whole output from its first token, so the backend
needs no notion of thinking, and a trigger cannot fire inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from events.formats.output_format import OutputFormat, markers
from events.grammar.calls import CallWriter, Function
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, optional, pattern, sequence
from events.options import ResponseFormat, ToolChoice

Stage = Literal["start", "reasoning", "content"]
GAP = pattern(r"\n{0,2}")
"""Line breaks that templates put between reasoning and what follows."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`tag` is the structural tag, None when nothing is to be enforced. `warnings`: what was asked and is not."""

    tag: dict[str, Any] | None = None
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
    """What the output must look like. `functions` are the declared tools; `choice` narrows them."""
    alphabet = Alphabet(marker_ids, markers(output_format))
    wanted = chosen(functions, choice)
    answer = _answer(output_format, response_format, alphabet)
    if not wanted:
        return Plan() if answer is None else _finish(output_format, alphabet, stage, answer)
    if output_format.tools is None or output_format.channels is not None:
        if answer is not None and choice.mode == "auto":
            return _finish(output_format, alphabet, stage, answer)
        return Plan(warnings=("Tool calls of this model's format are validated, not enforced.",))
    writer = CallWriter(output_format.tools, alphabet)
    if choice.mode != "auto":
        return _finish(output_format, alphabet, stage, writer.section(wanted, parallel=parallel))
    if answer is not None:
        return _finish(output_format, alphabet, stage, either(answer, writer.section(wanted, parallel=parallel)))
    return _finish(
        output_format, alphabet, stage, _automatic(output_format, writer, wanted, parallel=parallel), gap=False
    )


def chosen(functions: Sequence[Function], choice: ToolChoice) -> list[Function]:
    if choice.mode == "none":
        return []
    return [function for function in functions if not choice.names or function.name in choice.names]


def _finish(output_format: OutputFormat, alphabet: Alphabet, stage: Stage, body: Node, *, gap: bool = True) -> Plan:
    reasoning = _reasoning(output_format, alphabet, stage)
    between = optional(GAP) if gap and reasoning != EMPTY else EMPTY
    return Plan(tag={"type": "structural_tag", "format": sequence(reasoning, between, body)})


def _reasoning(output_format: OutputFormat, alphabet: Alphabet, stage: Stage) -> Node:
    """The rest of the reasoning if the prompt opened it, the whole of it or none if the model may open it."""
    spec = output_format.reasoning
    if spec is None or not spec.end or stage == "content":
        return EMPTY
    if stage == "reasoning":
        return alphabet.until(spec.end[0])
    if not spec.start:
        return EMPTY
    return optional(sequence(alphabet.literal(spec.start[0].strip()), alphabet.until(spec.end[0])))


def _answer(output_format: OutputFormat, wanted: ResponseFormat | None, alphabet: Alphabet) -> Node | None:
    if wanted is None:
        return None
    content = output_format.content
    before = alphabet.literal(content.start[0]) if content.start and content.wrapped == "always" else EMPTY
    after = alphabet.literal(content.end[0]) if content.end and content.wrapped == "always" else EMPTY
    return sequence(before, _shape(wanted, alphabet), after)


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
            return {"type": "grammar", "grammar": wanted.value}
        case "structural_tag":
            return dict(wanted.value.get("format") or wanted.value)


def _automatic(output_format: OutputFormat, writer: CallWriter, wanted: list[Function], *, parallel: bool) -> Node:
    """Free text until a call's marker, then nothing but a legal call; free text again after it."""
    sectioned = bool(writer.tools.section_start) and not writer.tools.repeats_section
    openings = _openings(writer.section(wanted, parallel=parallel and sectioned))
    tokens = [head["token"] for head, _ in openings if head["type"] == "token"]
    if len(tokens) == len(openings):
        tags = [_tag(head, rest) for head, rest in openings]
        return {
            "type": "token_triggered_tags",
            "trigger_tokens": tokens,
            "tags": tags,
            "exclude_tokens": [number for number in writer.alphabet.others() if number not in tokens],
            "stop_after_first": not parallel,
        }
    tags = [_tag(head["value"], rest) for head, rest in openings if "value" in head]
    triggers = sorted({tag["begin"] for tag in tags})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not parallel}


def _openings(section: Node) -> list[tuple[Node, Node]]:
    """What a section can begin with (a token or a constant text), each with what follows it."""
    head, rest = _split(section)
    if head["type"] != "or":
        return [(head, rest)]
    found: list[tuple[Node, list[Node]]] = []
    for element in head["elements"]:
        for begin, after in _openings(element):
            same = next((nodes for known, nodes in found if known == begin), None)
            if same is None:
                found.append((begin, [sequence(after, rest)]))
            else:
                same.append(sequence(after, rest))
    return [(begin, either(*nodes)) for begin, nodes in found]


def _tag(begin: str | Node, rest: Node) -> Node:
    """A tag whose end is the last marker of `rest`: the backend wants one where the content has no bound."""
    *content, last = rest["elements"] if rest["type"] == "sequence" else [rest]
    if last["type"] == "const_string":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last["value"]}
    if last["type"] == "token":
        return {"type": "tag", "begin": begin, "content": sequence(*content), "end": last}
    return {"type": "tag", "begin": begin, "content": rest, "end": ""}


def _split(node: Node) -> tuple[Node, Node]:
    if node["type"] == "sequence":
        first, *others = node["elements"]
        return first, sequence(*others)
    return node, EMPTY
