"""What a comparison of renderings cannot find, told by signs in what a template renders, never by a model's name.

A sign is a piece of structure: message headers that route what follows (`<|channel|>`), recipients in the text
(`>>>`), a list of tools whose calls the template never writes, or markers that are a known family's. The signs stand in
the families' modules (`events.formats.families`).
"""

from __future__ import annotations

from events.formats.cards import CARDS
from events.formats.family import Seen, Sign
from events.formats.output_format import JsonKeys, OutputFormat, Tools
from events.formats.registry import SIGNS
from events.template import probe as words
from events.template.difference import after, is_marker, segments
from events.template.environment import to_json
from events.template.probe import Probe
from events.template.reasoning import closing_of


def recognise(seen: Seen) -> Sign | None:
    """The first sign that is seen; None where the derived format is used as it is."""
    return next((sign for sign in SIGNS if sign.test(seen)), None)


def card_of(probe: Probe, seen: Seen) -> str:
    """The name of the card that describes tools to a model whose template has no place for them; "" for none."""
    if probe.capabilities.tools or seen.derived.tools is not None:
        return ""
    return next((card.name for card in CARDS.values() if card.test(seen)), "")


def seen_of(probe: Probe, derived: OutputFormat) -> Seen:
    shape = probe.capabilities
    answer = probe.render([words.user(), words.assistant()]) or ""
    call = ""
    if shape.tool_calls:
        made = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
        call = probe.render([words.user(), words.calling([made], shape.call_content)], tools=True) or ""
    declared = probe.render([words.user()], tools=True) or ""
    if shape.tools_in_system:
        declared = probe.render([{**words.system(), "tools": to_json(words.TOOLS)}, words.user()]) or ""
    return Seen(
        system=declared[: declared.rfind(words.USER)],
        answer=after(answer, words.USER),
        call=after(call, words.USER),
        calls_rendered=shape.tool_calls,
        source=probe.template.source,
        derived=derived,
    )


_CALL_WORDS = ("tool_call", "function_call", "toolcall", "functioncall", "tool_use")


def explained_calls(probe: Probe) -> Tools | None:
    """Tools of a template that declares them but renders no call: a marker for calls that its text names, around
    JSON (Granite 3.3: "respond only with <|tool_call|> followed by a JSON list"); without one, bare JSON."""
    if not probe.capabilities.tools or probe.capabilities.tool_calls:
        return None
    declared, plain = probe.render([words.user()], tools=True) or "", probe.render([words.user()]) or ""
    known = set(segments(plain))
    for text in (declared, probe.template.source):
        for part in segments(text):
            if is_marker(part) and part not in known and _names_a_call(part):
                return Tools(style="json", call_start=part, call_end=closing_of(part, text), json=JsonKeys())
    return Tools(style="json", call_separator="; ", json=JsonKeys())


def _names_a_call(marker: str) -> bool:
    opening = not marker.startswith(("</", "[/", "<|/")) and "end" not in marker.lower()
    return opening and any(word in marker.lower().replace("-", "_") for word in _CALL_WORDS)
