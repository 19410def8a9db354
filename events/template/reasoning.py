"""Phase 1: how a template writes reasoning, which variables switch it, and whether the prompt opens it.

R1 compares a message with and without reasoning, R3 a message with a call; R2 compares the generation prompt with the
thinking switches on and off. If none of them shows a marker (because the history drops all reasoning), the markers are
used that the template searches for in old messages or explains in its system text.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from events.formats.output_format import Reasoning
from events.template import probe as words
from events.template.difference import THOUGHT_WORD, after, is_marker, segments
from events.template.environment import Message, variables
from events.template.probe import Probe
from events.template.turn_frame import TurnFrame

Mode = Literal["none", "tag_based", "delimiter", "forced_open", "forced_closed", "tools_only"]

_SWITCH_NAME = re.compile(r"think|thought|reason|effort", re.IGNORECASE)
_HISTORY_NAME = re.compile(
    r"keep|preserve|clear|truncate|history|past|interleav|strip|drop|content|message|prompt|text"
)
_WORD_NAME = re.compile(r"effort|level|strength|mode", re.IGNORECASE)
_BUDGET_NAME = re.compile(r"budget|tokens", re.IGNORECASE)
_INVERSE_NAME = re.compile(r"^(skip|disable|no|hide|omit|without|suppress)_?(?=think|thought|reason)", re.IGNORECASE)
_OFF_WORDS = ("/no_think", "/nothink")
_STRING = re.compile(r"'((?:[^'\\\n]|\\.){1,80})'|\"((?:[^\"\\\n]|\\.){1,80})\"")
_OPPOSITES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("prefix", "suffix"))
MODES_ON = ("enabled", "on", "think", "thinking", "auto", "adaptive")
MODES_OFF = ("disabled", "off", "no_think", "chat")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A template variable that changes how much the model thinks.

    kind: "boolean" (on and off are True and False, or the reverse if the name says so, as `skip_thinking`), "effort" or
    "mode" (a word from `levels`), "budget" (a number of tokens, 0 is off) or "text" (no variable: `name` is put into
    the system message to turn thinking off).
    default: the value or state without a setting, None if unknown. effect: "prompt" if it changes the generation
    prompt, "system" if it changes only the text before the conversation.
    """

    name: str
    kind: Literal["boolean", "effort", "mode", "budget", "text"]
    default: bool | str | None = None
    levels: tuple[str, ...] = ()
    effect: Literal["prompt", "system"] = "prompt"


class ReasoningAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """mode: as in the auto-parser's table. start, end: as rendered, with their line breaks. repeats_header: the text
    after the reasoning is a message of its own."""

    mode: Mode = "none"
    start: str = ""
    end: str = ""
    source: str = ""
    repeats_header: bool = False

    def description(self) -> Reasoning | None:
        """Return the corresponding part of an output format, or None without reasoning."""
        if self.mode == "none" or not self.end.strip():
            return None
        start = (self.start,) if self.start.strip() else ()
        return Reasoning(start=start, end=(self.end,), initial="reasoning" if not start else "content")


def find_switches(probe: Probe) -> tuple[Switch, ...]:
    """Find variables whose names suggest reasoning and that change the rendering (R2)."""
    candidates = [
        _switch(probe, name) for name in sorted(variables(probe.template.source)) if _SWITCH_NAME.search(name)
    ]
    switches = [switch for switch in candidates if switch is not None]
    if any(switch.kind in ("boolean", "mode") for switch in switches):
        return tuple(switches)
    # Words that turn thinking off in the system message (Nemotron Nano 2: `/no_think`).
    plain = probe.render([words.system(), words.user()], prompt=True)
    for word in _OFF_WORDS:
        if plain is None or word not in probe.template.source:
            continue
        text = probe.render([words.system(f"{words.SYSTEM}\n{word}"), words.user()], prompt=True)
        if text is not None and after(text, words.USER) != after(plain, words.USER):
            switches.append(Switch(name=word, kind="text", default=True))
            break
    return tuple(switches)


def _switch(probe: Probe, name: str) -> Switch | None:
    if _HISTORY_NAME.search(name):
        return None
    default = probe.render([words.user()], prompt=True)
    if _BUDGET_NAME.search(name):
        return _two_states(probe, name, "budget", default, on=4096, off=0)
    if not _WORD_NAME.search(name) and (switch := _two_states(probe, name, "boolean", default, on=True, off=False)):
        return switch
    # A variable with words as values: levels of effort, or modes of which one means off.
    choices = (*EFFORTS, *MODES_ON, *MODES_OFF) if "mode" in name else EFFORTS
    values: dict[str, dict[str, Any]] = {word: {name: word} for word in choices}
    rendered = {word: probe.render([words.user()], prompt=True, **value) for word, value in values.items()}
    usable = {word: text for word, text in rendered.items() if text is not None}
    if len(set(usable.values())) < 2:
        return None
    stranger: dict[str, Any] = {name: "no such word"}
    unknown = probe.render([words.user()], prompt=True, **stranger)
    echoed = unknown is not None and "no such word" in unknown  # the template prints any value
    if not echoed and len(telling := {word: text for word, text in usable.items() if text != unknown}) > 1:
        usable = telling
    kind: Literal["mode", "effort"] = "mode" if any(word in MODES_ON + MODES_OFF for word in usable) else "effort"
    texts = list(usable.values())
    state = next((word for word, text in usable.items() if text == default), None)
    return Switch(name=name, kind=kind, default=state, levels=tuple(usable), effect=_effect(texts[0], texts[-1]))


def _two_states(
    probe: Probe, name: str, kind: Literal["boolean", "budget"], default: str | None, *, on: Any, off: Any
) -> Switch | None:
    turned_on, turned_off = (probe.render([words.user()], prompt=True, **{name: value}) for value in (on, off))
    if turned_on is None or turned_off is None or turned_on == turned_off:
        return None
    state = True if default == turned_on else False if default == turned_off else None
    return Switch(name=name, kind=kind, default=state, effect=_effect(turned_on, turned_off))


def _effect(one: str, other: str) -> Literal["prompt", "system"]:
    return "system" if after(one, words.USER) == after(other, words.USER) else "prompt"


def settings(switches: tuple[Switch, ...], on: bool) -> dict[str, object]:
    """Return the values of all switches for thinking on or off."""
    values: dict[str, object] = {}
    for switch in switches:
        value = switch_value(switch, on)
        if value is not None and switch.kind != "text":
            values[switch.name] = value
    return values


def switch_value(switch: Switch, on: bool) -> bool | str | int | None:
    """Return a switch's value for thinking on or off; None leaves it unset, also if the template thinks by default in a
    mode of its own (MiniMax M3: "adaptive")."""
    if switch.kind == "boolean":
        return on != bool(_INVERSE_NAME.match(switch.name))
    if switch.kind == "budget":
        return None if on else 0
    if switch.kind == "mode":
        if on and switch.default in MODES_ON:
            return None
        return next((word for word in (MODES_ON if on else MODES_OFF) if word in switch.levels), None)
    if switch.kind == "text":
        return None if on else switch.name
    return "none" if not on and "none" in switch.levels else None


def analyse_reasoning(probe: Probe, turn: TurnFrame, switches: tuple[Switch, ...]) -> ReasoningAnalysis:
    """Analyse reasoning from the first source that shows a closing marker; see the module's docstring."""
    on, prompts = settings(switches, True), prompts_of(probe, turn, switches)
    analysis = (
        _in_messages(probe, turn, on) or _in_prompts(probe, prompts) or _in_source(probe) or _in_system(probe, on)
    )
    if analysis is None:
        return ReasoningAnalysis()
    # The generation prompt determines the auto-parser's mode, and the start if only the prompt writes it.
    start, end = analysis.start, analysis.end
    if not start.strip():
        candidates = (prompts.get(key, "") for key in ("on", "default"))
        opened = next((prompt for prompt in candidates if prompt.strip() and end.strip() not in prompt), "")
        marks = [part for part in segments(opened) if is_marker(part)]
        start = marks[0] if marks else opening_of(end.strip()) or ""
    if not start.strip():
        return msgspec.structs.replace(analysis, mode="delimiter", start="")
    closed_prompt = prompts.get("off", "")
    closes = start.strip() in closed_prompt and end.strip() in closed_prompt
    if analysis.mode == "tag_based" and closes and prompts.get("on", "").rstrip().endswith(start.strip()):
        return msgspec.structs.replace(analysis, mode="forced_closed", start=start)
    if analysis.mode == "tag_based" and prompts.get("default", "").rstrip().endswith(start.strip()):
        return msgspec.structs.replace(analysis, mode="forced_open", start=start)
    return msgspec.structs.replace(analysis, start=start)


def prompts_of(probe: Probe, turn: TurnFrame, switches: tuple[Switch, ...]) -> dict[str, str]:
    """Return the text that the generation prompt adds after the header: by default, and with thinking on and off."""
    prompts: dict[str, str] = {}
    on, off = settings(switches, True), settings(switches, False)
    variants: dict[str, dict[str, Any]] = {"default": {}, "on": on, "off": off}
    off_messages = [words.system(switch.name) for switch in switches if switch.kind == "text"]
    for key, extra in variants.items():
        head = off_messages if key == "off" else []
        text = probe.render([*head, words.user()], prompt=True, **extra)
        tail = after(text or "", words.USER)
        if text is not None and turn.message_start in tail:
            place = tail.rfind(turn.message_start) if turn.message_start else tail.find(turn.opening)
            prompts[key] = tail[place + len(turn.message_start or turn.opening) :] if place >= 0 else ""
    return prompts


def _in_messages(probe: Probe, turn: TurnFrame, on: dict[str, Any]) -> ReasoningAnalysis | None:
    """R1 and R3: analyse reasoning in a message with content, or else in a message with a call."""
    shape = probe.capabilities
    if shape.reasoning_field is None:
        return None
    call = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
    carriers: list[tuple[Mode, Message, str]] = [("tag_based", words.assistant(), words.CONTENT)]
    if shape.tool_calls:
        carriers.append(("tools_only", words.calling([call], shape.call_content), words.FUNCTION))
    for mode, carrier, needle in carriers:
        message = words.with_reasoning(carrier, shape.reasoning_field)
        for extra in ({}, on):
            text = probe.render([words.user(), message], **extra)
            if text is not None and words.REASONING in text:
                output = turn.assistant_text(text)
                position = output.find(words.REASONING)
                start, rest = output[:position], output[position + len(words.REASONING) :]
                rest = rest[: rest.find(needle)] if needle in rest else rest
                end = first_marker(rest)
                if not end.strip():
                    return None
                return ReasoningAnalysis(
                    mode=mode,
                    start=start,
                    end=end,
                    source=f"the message key {shape.reasoning_field!r} is rendered",
                    repeats_header=bool(turn.message_start.strip()) and turn.message_start.strip() in rest,
                )
    return None


def first_marker(text: str) -> str:
    """Return the text up to its first marker, including that and the line breaks after it, or all of it without one."""
    parts = segments(text)
    for index, part in enumerate(parts):
        if is_marker(part):
            behind = parts[index + 1] if index + 1 < len(parts) else ""
            return "".join(parts[: index + 1]) + behind[: len(behind) - len(behind.lstrip())]
    return text


def _in_prompts(probe: Probe, prompts: dict[str, str]) -> ReasoningAnalysis | None:
    """R2: analyse a block that the generation prompt opens (thinking on) or opens and closes (thinking off)."""
    for key in ("off", "default", "on"):
        marks = [part for part in segments(prompts.get(key, "")) if is_marker(part)]
        if len(marks) == 2 and THOUGHT_WORD.search(prompts[key]):
            # Split the empty block where the prompt that opens it ends, or else in the middle of its line breaks.
            block, opened = prompts[key], prompts.get("on", "")
            inner = block.find(marks[1])
            if opened.strip() and opened.strip() == block[:inner].strip():
                cut = len(opened) if block.startswith(opened) and len(opened) <= inner else inner
                start = opened
            else:
                bare = len(block[:inner].rstrip())
                cut = bare + (inner - bare + 1) // 2
                start = block[:cut]
            end = block[cut:]
            return ReasoningAnalysis(
                mode="forced_closed", start=start, end=end, source="the generation prompt closes it"
            )
    for key in ("on", "default"):
        marks = [part for part in segments(prompts.get(key, "")) if is_marker(part)]
        spoken = bool(THOUGHT_WORD.search(prompts.get(key, "")))
        if spoken and len(marks) == 1 and (end := closing_of(marks[0], probe.template.source)):
            start = prompts[key].lstrip()
            return ReasoningAnalysis(mode="forced_open", start=start, end=end, source="the generation prompt opens it")
    return None


def closing_of(marker: str, source: str) -> str:
    """Return the marker that closes `marker`: the first likely form in the template's text, or else `</name>` for a
    plain tag, or else ""."""
    inner = marker[1:-1]
    candidates = [f"</{inner}>", f"[/{inner}]"]
    for opening, closing in _OPPOSITES:
        if opening in marker:
            candidates.append(marker.replace(opening, closing))
    if inner.startswith("|"):
        candidates += [f"<|/{inner[1:]}>", f"<{inner[1:]}|>" if not inner.endswith("|") else ""]
    for candidate in candidates:
        if candidate and candidate in source:
            return candidate
    plain = marker.startswith("<") and inner.replace(":", "").replace("_", "").isalnum()
    return f"</{inner}>" if plain and THOUGHT_WORD.search(inner) else ""


def opening_of(marker: str) -> str:
    """Return the opening tag of a closing tag, or "" if it is not clear from its form."""
    if marker.startswith(("</", "[/")):
        return marker[0] + marker[2:]
    return ""


def literals(source: str) -> list[str]:
    """Return the template's string literals in order; markers that it searches for or splits at are among them."""
    return [(match.group(1) or match.group(2) or "").strip() for match in _STRING.finditer(source)]


def _in_source(probe: Probe) -> ReasoningAnalysis | None:
    source = probe.template.source
    marks = [part for text in literals(source) for part in segments(text) if is_marker(part)]
    for mark in marks:
        if not THOUGHT_WORD.search(mark):
            continue
        start, end = (opening_of(mark), mark) if opening_of(mark) else (mark, closing_of(mark, source))
        if end in marks:
            return ReasoningAnalysis(
                mode="tag_based", start=start, end=end, source=f"the template itself speaks of {end!r}"
            )
    return None


def _in_system(probe: Probe, on: dict[str, Any]) -> ReasoningAnalysis | None:
    """Find a pair of tags that the system text tells the model to use (Granite 3.3, Ministral)."""
    for extra in ({}, on):
        text = probe.render([words.user()], prompt=True, **extra) or ""
        marks = [part for part in segments(text[: text.rfind(words.USER)]) if is_marker(part)]
        for mark in marks:
            start = opening_of(mark)
            if start and start in marks and THOUGHT_WORD.search(mark):
                return ReasoningAnalysis(
                    mode="tag_based", start=start, end=mark, source="the system text tells the model to write it"
                )
    return None
