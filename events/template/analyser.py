"""Derive a model's output format from its chat template.

`analyse` never raises and is cached by the template's text. A part that it cannot determine is left out, with a
finding; a template that does not render gives plain text.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from events.formats.family import Sign
from events.formats.layout import call_opener
from events.formats.output_format import Content, OutputFormat, Reasoning
from events.template import probe as words
from events.template.content import analyse_content
from events.template.difference import between
from events.template.environment import ChatTemplate, TemplateError
from events.template.probe import Capabilities, Probe, capabilities
from events.template.reasoning import ReasoningAnalysis, Switch, analyse_reasoning, find_switches, prompts_of, settings
from events.template.recognition import card_of, evidence_of, explained_calls, recognise
from events.template.tools import ToolAnalysis, analyse_tools
from events.template.turn_frame import END_OF_SEQUENCE, TurnFrame, find_turn, markers_of

CACHE_SIZE = 64
_REASONS = {
    "json_native": "the function's name stands inside a JSON object",
    "tag_with_json": "the function's name stands outside of JSON, the arguments are a JSON object",
    "tag_with_tagged": "the names and values of arguments stand each between markers of their own",
    "python": "arguments are written as in a Python call",
    "object": "arguments are an object with bare keys",
    "nested": "arguments are elements named after their keys",
}


class TemplateAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of one chat template.

    family: the registry's name of the format whose sign was recognised; `findings` list what was taken from it.
    reasoning_mode, tool_mode: the results, in the terms of the auto-parser's document (docs/reading-output.md).
    tool_card: the name in events.formats.cards of the family's tool prompt, if the template does not support tools.
    prompts: the text that the generation prompt adds, from the assistant's header on, by "default", "on" and "off"
    (thinking).
    turn_end: the text after the assistant's content; stops: the markers that end a turn; ends_with_eos: whether the
    end-of-sequence token ends it.
    findings: the results and their reasons, one line each.
    """

    output_format: OutputFormat = OutputFormat()
    family: str | None = None
    capabilities: Capabilities = Capabilities()
    switches: tuple[Switch, ...] = ()
    reasoning_mode: str = "none"
    tool_mode: str = "none"
    python_dicts: bool = False
    message_start: str = ""
    turn_end: str = ""
    stops: tuple[str, ...] = ()
    ends_with_eos: bool = False
    tool_card: str = ""
    prompts: dict[str, str] = {}
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    renderings: int = 0


@functools.lru_cache(CACHE_SIZE)
def analyse(template: str) -> TemplateAnalysis:
    """Analyse a template's text. The result is cached, since the analysis takes some tens of milliseconds."""
    try:
        probe = Probe(ChatTemplate(template, {"eos_token": END_OF_SEQUENCE}))
    except TemplateError as error:
        return TemplateAnalysis(warnings=(str(error),), findings=("plain text: the template cannot be used",))
    try:
        probe.capabilities = capabilities(probe)
        if probe.render([words.user()]) is None:
            warning = f"the template refuses every conversation tried: {probe.refusal}"
            return TemplateAnalysis(warnings=(warning,), findings=("plain text: the template does not render",))
        switches = find_switches(probe)
        on, off = settings(switches, True), settings(switches, False)
        turn = find_turn(probe, [on, off])
        reasoning = analyse_reasoning(probe, turn, switches)
        content = analyse_content(probe, turn, reasoning, on)
        tools = analyse_tools(probe, turn, reasoning, content)
        thought = reasoning.description()
        calls = tools.tools or explained_calls(probe)
        tag_ends = thought is not None and (not thought.start or thought.end[0].strip().startswith(("</", "[/")))
        if thought and calls and (tag_ends or _calls_end_reasoning(probe, thought, on)):
            # Call markers that also end reasoning: tags, if reasoning ends with a tag (`</think>`, `[/THINK]`),
            # since models of those families forget to close it, or if the template writes no other end before a call.
            tags = [opener.strip().removesuffix("[").rstrip() for opener in (calls.section_start, calls.call_start)]
            ended_by = tuple(tag for tag in tags if tag[:1] + tag[-1:] in ("<>", "[]"))
            thought = msgspec.structs.replace(thought, ended_by=ended_by)
        # The ends of a turn, and the assistant's header if it is repeated between reasoning and text (Solar).
        marks = [*_ends(turn, tools)]
        if reasoning.repeats_header and turn.message_start.strip():
            marks.append(turn.message_start.strip())
        derived = OutputFormat(
            name="template",
            message_start=turn.message_start,
            reasoning=thought,
            content=content,
            tools=calls,
            drop=tuple(dict.fromkeys(mark for mark in marks if mark != END_OF_SEQUENCE)),
        )
        evidence = evidence_of(probe, derived)
        sign = recognise(evidence)
        return TemplateAnalysis(
            output_format=sign.apply(derived) if sign else derived,
            family=sign.name if sign else None,
            capabilities=probe.capabilities,
            switches=switches,
            reasoning_mode=reasoning.mode,
            tool_mode=tools.mode,
            python_dicts=tools.python_dicts,
            message_start=turn.message_start,
            turn_end=turn.end.replace(END_OF_SEQUENCE, ""),
            stops=tuple(mark for mark in _ends(turn, tools) if mark != END_OF_SEQUENCE),
            ends_with_eos=END_OF_SEQUENCE in turn.end,
            tool_card=card_of(probe, evidence),
            prompts={key: turn.message_start + text for key, text in prompts_of(probe, turn, switches).items()},
            findings=_findings(probe, turn, reasoning, content, tools, switches, sign),
            renderings=probe.renderings,
        )
    except Exception as error:  # a model must be served even if the analysis of its template fails
        reason = f"the analysis failed ({type(error).__name__}: {error})"
        return TemplateAnalysis(warnings=(reason,), findings=("plain text: nothing is known of the output",))


def _ends(turn: TurnFrame, tools: ToolAnalysis) -> tuple[str, ...]:
    """Return the ends of a turn; for turns with calls including the opener of the result, if that is in the same turn
    (Gemma 4)."""
    return tuple(dict.fromkeys((*turn.stops, *markers_of(tools.leftover))))


def _calls_end_reasoning(probe: Probe, thought: Reasoning, on: dict[str, Any]) -> bool:
    """Return whether the template writes a call directly behind reasoning, without the marker that else ends it."""
    shape = probe.capabilities
    if not shape.tool_calls or shape.reasoning_field is None:
        return False
    call = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
    message = words.with_reasoning(words.calling([call], shape.call_content), shape.reasoning_field)
    text = probe.render([words.user(), message], tools=True, **on)
    stretch = between(text, words.REASONING, words.FUNCTION) if text else None
    return stretch is not None and thought.end[0].strip() not in stretch


def _findings(
    probe: Probe,
    turn: TurnFrame,
    reasoning: ReasoningAnalysis,
    content: Content,
    tools: ToolAnalysis,
    switches: tuple[Switch, ...],
    sign: Sign | None,
) -> tuple[str, ...]:
    lines = [f"an assistant message begins with {turn.message_start!r} and ends with {turn.end!r}"]
    if sign:
        lines.append(f"the format {sign.name!r} is used for {sign.used_for}: {sign.what}")
    if reasoning.mode == "none":
        lines.append("no reasoning: no message key, generation prompt or text of the template shows any")
    else:
        place = f"between {reasoning.start!r} and {reasoning.end!r}"
        lines.append(f"reasoning ({reasoning.mode}) {place}: {reasoning.source}")
    for switch in switches:
        described = f"{switch.name} ({switch.kind}, default {switch.default})"
        lines.append(f"thinking is switched by {described}, seen in the {switch.effect}")
    if content.start:
        lines.append(f"content is wrapped ({content.wrapped}) in {content.start[0]!r} and {(*content.end, '')[0]!r}")
    if tools.tools:
        reason = _REASONS[tools.mode] + (", spelled as Python dicts" if tools.python_dicts else "")
        marker = call_opener(tools.tools)
        lines.append(f"tool calls ({tools.mode}) {f'behind {marker!r}' if marker else 'without a marker'}: {reason}")
    elif explained := explained_calls(probe):
        lines.append(f"tools are declared, but no call is rendered; JSON is read behind {explained.call_start!r}")
    return (*lines, *tools.findings)
