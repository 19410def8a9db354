"""Families that no comparison can find, told by signs in what their templates render, never by a model's name.

A sign is a piece of structure: message headers that route what follows (`<|channel|>`), recipients in the text
(`>>>`), a list of tools whose calls the template never writes. What such a family writes is described in
`events.formats`; here only its name is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from events.formats.output_format import JsonKeys, Tools
from events.template import probe as words
from events.template.difference import after, is_marker, segments
from events.template.environment import to_json
from events.template.probe import Probe
from events.template.reasoning import closing_of


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """name: of the format in the registry. parts: whether it replaces the whole description or only the tools, or
    brings the reasoning that a template leaves out. sign: what was seen."""

    name: str
    sign: str
    parts: Literal["all", "tools", "reasoning"] = "all"


Test = Callable[["Evidence"], bool]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Renderings to look for signs in: the system text with tools declared, an answer, a call, reasoning."""

    system: str
    answer: str
    call: str
    calls_rendered: bool
    tools_rendered: bool

    def everything(self, *signs: str) -> bool:
        return all(sign in self.answer + self.call for sign in signs)


_SIGNS: tuple[tuple[Family, Test], ...] = (
    (
        Family(name="openai", sign="messages carry a channel in a header: <|channel|>...<|message|>"),
        lambda seen: seen.everything("<|channel|>", "<|message|>"),
    ),
    (
        Family(name="functionary_v3_2", sign="an answer is addressed to a recipient: >>>all"),
        lambda seen: ">>>all\n" in seen.answer,
    ),
    (
        Family(name="kimi_k3", sign="elements are written with <|open|>, <|sep|> and <|close|>"),
        lambda seen: seen.everything("<|open|>", "<|sep|>", "<|close|>"),
    ),
    (
        Family(name="muse", sign="messages are addressed with to=...<|message|>"),
        lambda seen: " to=user<|message|>" in seen.answer,
    ),
    (
        Family(name="inkling", sign="messages begin with <|content_...|>"),
        lambda seen: seen.everything("<|content_", "<|end_message|>"),
    ),
    (
        Family(name="gemma4", sign='strings of a call stand between <|"|>, reasoning is a channel of its own'),
        lambda seen: '<|"|>' in seen.call and "<|tool_call>call:" in seen.call,
    ),
    (
        Family(name="minimax_m3", sign="every tag of a call is announced by ]<]minimax[>[", parts="tools"),
        lambda seen: "]<]minimax[>[" in seen.call,
    ),
    (
        Family(
            name="deepseek_v4",
            sign="the template writes all arguments as one DSML parameter, which models do not",
            parts="tools",
        ),
        lambda seen: "<｜DSML｜tool_calls>" in seen.call and 'parameter name="arguments"' in seen.call,
    ),
    (
        Family(name="phi4_mini_json", sign="tools are declared between <|tool|> and <|/tool|>", parts="tools"),
        lambda seen: not seen.calls_rendered and "<|tool|>" in seen.system and "<|/tool|>" in seen.system,
    ),
    (
        Family(name="kimi_k2", sign="calls stand in <|tool_calls_section_begin|>", parts="reasoning"),
        lambda seen: "<|tool_calls_section_begin|>" in seen.call,
    ),
    (
        Family(name="lfm2", sign="a list of tools is declared, no call is ever rendered", parts="tools"),
        lambda seen: not seen.calls_rendered and "List of tools: " in seen.system,
    ),
)


def recognise(probe: Probe, reasoning: bool) -> Family | None:
    """The first family whose sign is seen, None for a template that speaks for itself. reasoning: whether the template
    shows any."""
    seen = _evidence(probe)
    usable = (each for each in _SIGNS if not (reasoning and each[0].parts == "reasoning"))
    return next((family for family, test in usable if test(seen)), None)


def _evidence(probe: Probe) -> Evidence:
    shape = probe.capabilities
    answer = probe.render([words.user(), words.assistant()]) or ""
    call = ""
    if shape.tool_calls:
        made = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
        call = probe.render([words.user(), words.calling([made], shape.call_content)], tools=True) or ""
    declared = probe.render([words.user()], tools=True) or ""
    if shape.tools_in_system:
        declared = probe.render([{**words.system(), "tools": to_json(words.TOOLS)}, words.user()]) or ""
    return Evidence(
        system=declared[: declared.rfind(words.USER)],
        answer=after(answer, words.USER),
        call=after(call, words.USER),
        calls_rendered=shape.tool_calls,
        tools_rendered=shape.tools,
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
