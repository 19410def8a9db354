"""Recognise formats that a comparison of renderings cannot derive, by signs in the renderings and not by a model's
name.

A sign is a piece of structure: message headers that route bodies (`<|channel|>`), recipients in the text (`>>>`), a
list of tools whose calls the template never writes, or markers of a known family. The signs are defined in the
families' modules (`events.formats.families`).
"""

from __future__ import annotations

from events.formats.cards import CARDS
from events.formats.family import Evidence, Sign
from events.formats.output_format import JsonKeys, OutputFormat, Tools
from events.formats.registry import SIGNS
from events.template import probe as words
from events.template.difference import after, is_marker, segments
from events.template.environment import to_json
from events.template.probe import Probe
from events.template.reasoning import closing_of


def recognise(evidence: Evidence) -> Sign | None:
    """Return the first matching sign, or None if the derived format is used unchanged."""
    return next((sign for sign in SIGNS if sign.test(evidence)), None)


def card_of(probe: Probe, evidence: Evidence) -> str:
    """Return the name of the card that describes tools to a model whose template does not support them, or ""."""
    if probe.capabilities.tools or evidence.derived.tools is not None:
        return ""
    return next((card.name for card in CARDS.values() if card.test(evidence)), "")


def evidence_of(probe: Probe, derived: OutputFormat) -> Evidence:
    shape = probe.capabilities
    answer = probe.render([words.user(), words.assistant()]) or ""
    call = ""
    if shape.tool_calls:
        example = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
        call = probe.render([words.user(), words.calling([example], shape.call_content)], tools=True) or ""
    declared = probe.render([words.user()], tools=True) or ""
    if shape.tools_in_system:
        declared = probe.render([{**words.system(), "tools": to_json(words.TOOLS)}, words.user()]) or ""
    if shape.tools_role:
        declared = probe.render([words.declaring(shape.tools_role, words.TOOLS), words.user()]) or ""
    return Evidence(
        system=declared[: declared.rfind(words.USER)],
        answer=after(answer, words.USER),
        call=after(call, words.USER),
        calls_rendered=shape.tool_calls,
        source=probe.template.source,
        derived=derived,
    )


_CALL_WORDS = ("tool_call", "function_call", "toolcall", "functioncall", "tool_use")


def explained_calls(probe: Probe) -> Tools | None:
    """Return the calls of a template that declares tools but renders no calls: JSON with a marker that its text names
    (Granite 3.3: "respond only with <|tool_call|> followed by a JSON list"), or else bare JSON."""
    if not probe.capabilities.tools or probe.capabilities.tool_calls:
        return None
    declared, plain = probe.render([words.user()], tools=True) or "", probe.render([words.user()]) or ""
    usual_segments = set(segments(plain))
    for text in (declared, probe.template.source):
        for part in segments(text):
            name = part.lower().replace("-", "_")
            closes = part.startswith(("</", "[/", "<|/")) or "end" in name
            names_a_call = not closes and any(word in name for word in _CALL_WORDS)
            if is_marker(part) and part not in usual_segments and names_a_call:
                return Tools(style="json", call_start=part, call_end=closing_of(part, text), json=JsonKeys())
    return Tools(style="json", call_separator="; ", json=JsonKeys())
