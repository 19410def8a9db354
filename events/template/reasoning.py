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
from events.template.environment import Message, possible_values, variables
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
_LEVEL = re.compile(r"[a-z_]{2,16}")
_STRING = re.compile(r"'((?:[^'\\\n]|\\.){1,80})'|\"((?:[^\"\\\n]|\\.){1,80})\"")
_OPPOSITES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("prefix", "suffix"))
MODES_ON = ("enabled", "on", "think", "thinking", "auto", "adaptive")
MODES_OFF = ("none", "disabled", "off", "no_think", "chat")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MOST_LEVELS = 16
_ON_EFFORTS = ("medium", "high", "low", "max", "minimal", "xhigh")


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A template variable that changes how much the model thinks.

    kind: "boolean" (on and off are True and False, or the reverse if the name says so, as `skip_thinking`), "level" (a
    word from `levels`: an effort or a mode), "budget" (a number of tokens, 0 is off) or "text" (no variable: `name` is
    put into the system message to turn thinking off).
    default: the value or state without a setting, None if unknown. effect: "prompt" if it changes the generation
    prompt, "system" if it changes only the text before the conversation.
    """

    name: str
    kind: Literal["boolean", "level", "budget", "text"]
    default: bool | str | None = None
    levels: tuple[str, ...] = ()
    effect: Literal["prompt", "system"] = "prompt"


class ReasoningAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """mode: as in the auto-parser's table. start, end: as rendered, with their line breaks. others: further pairs of
    markers, which the prompt opens for other levels of effort (K2 Horizon). repeats_header: the text after the
    reasoning is a message of its own."""

    mode: Mode = "none"
    start: str = ""
    end: str = ""
    source: str = ""
    others: tuple[tuple[str, str], ...] = ()
    repeats_header: bool = False

    def description(self) -> Reasoning | None:
        """Return the corresponding part of an output format, or None without reasoning."""
        if self.mode == "none" or not self.end.strip():
            return None
        starts, ends = zip((self.start, self.end), *self.others, strict=True)
        if not self.start.strip():
            return Reasoning(start=(), end=ends, initial="reasoning")
        return Reasoning(start=starts, end=ends)


def find_switches(probe: Probe) -> tuple[Switch, ...]:
    """Find variables whose names suggest reasoning and that change the rendering (R2)."""
    names = [
        name
        for name in sorted(variables(probe.template.source))
        if _SWITCH_NAME.search(name) and not _HISTORY_NAME.search(name)
    ]
    found = {name: switch for name in names if (switch := _two_state_switch(probe, name))}
    # Levels are tried with thinking on, since some templates (DeepSeek V4) write them only then.
    on = settings(tuple(found.values()), True)
    levels = {name: switch for name in names if name not in found and (switch := _level_switch(probe, name, on))}
    switches = [switch for name in names if (switch := found.get(name) or levels.get(name))]
    if any(switch.kind == "boolean" or set(switch.levels) & {*MODES_ON, *MODES_OFF} for switch in switches):
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


def _two_state_switch(probe: Probe, name: str) -> Switch | None:
    if _BUDGET_NAME.search(name):
        return _two_states(probe, name, "budget", on=4096, off=0)
    return None if _WORD_NAME.search(name) else _two_states(probe, name, "boolean", on=True, off=False)


def _level_switch(probe: Probe, name: str, on: dict[str, Any]) -> Switch | None:
    """Return the switch of a variable whose values are words: levels of effort, or modes.

    The words are the usual efforts and those with which the template compares the variable. If it renders unknown words
    alike, only the words that make a difference are levels, and those that it names itself.
    """
    named = [word for word in possible_values(probe.template.source, name) if _LEVEL.fullmatch(word)][:MOST_LEVELS]
    choices = (*EFFORTS, *MODES_ON, *MODES_OFF[1:]) if "mode" in name else EFFORTS

    def rendered(value: str) -> str | None:
        return probe.render([words.user()], prompt=True, **{**on, name: value})

    usable = {word: text for word in dict.fromkeys([*choices, *named]) if (text := rendered(word)) is not None}
    if len(set(usable.values())) < 2:
        return None
    unknown = rendered("no such word")
    echoed = unknown is not None and "no such word" in unknown  # the template prints any value
    telling = {word: text for word, text in usable.items() if text != unknown or word in named}
    if not echoed and len(telling) > 1:
        usable = telling
    default = probe.render([words.user()], prompt=True, **on)
    states = [word for word, text in usable.items() if text == default]
    state = next((word for word in states if word not in MODES_OFF), states[0] if states else None)
    texts = list(usable.values())
    return Switch(name=name, kind="level", default=state, levels=tuple(usable), effect=_effect(texts[0], texts[-1]))


def _two_states(probe: Probe, name: str, kind: Literal["boolean", "budget"], *, on: Any, off: Any) -> Switch | None:
    default = probe.render([words.user()], prompt=True)
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
    if switch.kind == "text":
        return None if on else switch.name
    off_words = [word for word in switch.levels if word in MODES_OFF]
    if not on:
        return off_words[0] if off_words else None
    if not off_words or switch.default not in (None, *MODES_OFF):
        return None
    return next((word for word in (*MODES_ON, *_ON_EFFORTS) if word in switch.levels), None)


def nearest_level(switch: Switch, effort: str) -> str | None:
    """Return the level for an effort: the least that is not below it, or else the highest. None leaves the variable
    unset, which counts as a medium effort if no level renders like it, and if the levels are no efforts."""
    known = [word for word in EFFORTS[1:] if word in switch.levels]
    if not known or effort not in EFFORTS:
        return None
    wanted = EFFORTS.index(effort)
    level = next((word for word in known if EFFORTS.index(word) >= wanted), known[-1])
    unset = switch.default is None and level != effort and wanted <= EFFORTS.index("medium") < EFFORTS.index(level)
    return None if unset else level


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
    analysis = msgspec.structs.replace(analysis, others=_other_blocks(probe, switches, start, end))
    closed_prompt = prompts.get("off", "")
    closes = start.strip() in closed_prompt and end.strip() in closed_prompt
    if analysis.mode == "tag_based" and closes and prompts.get("on", "").rstrip().endswith(start.strip()):
        return msgspec.structs.replace(analysis, mode="forced_closed", start=start)
    if analysis.mode == "tag_based" and prompts.get("default", "").rstrip().endswith(start.strip()):
        return msgspec.structs.replace(analysis, mode="forced_open", start=start)
    return msgspec.structs.replace(analysis, start=start)


def _other_blocks(probe: Probe, switches: tuple[Switch, ...], start: str, end: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of markers, other than (start, end), whose first the prompt writes for a level of effort."""
    on, name = settings(switches, True), start.strip()[1:-1]
    blocks: dict[str, str] = {}
    for switch in switches:
        for level in switch.levels if switch.effect == "prompt" else ():
            values: dict[str, Any] = {**on, switch.name: level}
            text = probe.render([words.user()], prompt=True, **values) or ""
            marks = [part for part in segments(after(text, words.USER)) if is_marker(part) and not opening_of(part)]
            if marks and THOUGHT_WORD.search(marks[-1]) and marks[-1] != start.strip():
                same_form = end.strip().replace(name, marks[-1][1:-1]) if name in end else ""
                blocks[marks[-1]] = same_form or closing_of(marks[-1], probe.template.source)
    return tuple((mark, closing) for mark, closing in blocks.items() if closing)


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
