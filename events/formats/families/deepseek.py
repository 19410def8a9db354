"""DeepSeek: calls between special tokens up to V3.1, then in DeepSeek's own markup language (DSML).

The chat templates and the DSML encoding are those that DeepSeek publishes with each model.
"""

from __future__ import annotations

import msgspec

from events.formats.family import Family, Sign, calls, own_markers
from events.formats.output_format import Arguments, OutputFormat, Reasoning, Tools
from events.formats.samples import BOTH, BREST, Sample
from events.formats.shapes import OPEN_THINK, THINK, THINK_OR_CALL, invoke_tags, think

_UNDECIDED = Reasoning(start=("<think>",), end=("</think>",), initial="undecided")
_END = ("<｜end▁of▁sentence｜>",)
_CALLS = Tools(
    style="tag",
    section_start="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call_start="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    name_suffix="<｜tool▁sep｜>",
    failed="drop",
)
_FENCED = msgspec.structs.replace(
    _CALLS,
    name_prefix="function<｜tool▁sep｜>",
    name_suffix="\n```json\n",
    arguments=Arguments(end="\n```"),
)
_SPELLINGS = tuple(
    (marker.replace("▁", blank).replace("｜", bar), marker)
    for marker in (_CALLS.section_start, _CALLS.section_end, _CALLS.call_start, _CALLS.call_end)
    for blank, bar in (("_", "｜"), ("\\_", "｜"), (" ", "｜"), ("▁", "|"), ("_", "|"))
)
"""Variants of the markers, without the special characters, that distilled and quantised models write."""


def _special_tokens(name: str, tools: Tools, reasoning: Reasoning) -> OutputFormat:
    """Return a format with calls between special tokens."""
    return OutputFormat(name=name, reasoning=reasoning, tools=tools, drop=_END, spellings=_SPELLINGS)


def _dsml(name: str, wrapper: str, space: str = "") -> OutputFormat:
    """Return a format in DSML: invoke and parameter tags that begin with `<｜DSML｜`."""
    start, end = f"<｜DSML｜{wrapper}>\n", f"</｜DSML｜{wrapper}>"
    return OutputFormat(
        name=name,
        reasoning=think(start),
        tools=invoke_tags("｜DSML｜", space, section=(start, end), typed=True, bare="always"),
        drop=_END,
        spellings=tuple((f"<｜DSML｜{variant}>", start) for variant in ("tool", "toolcalls") if variant != wrapper),
    )


DEEPSEEK = _special_tokens("deepseek", _FENCED, _UNDECIDED)
V3 = _special_tokens("deepseek_v3", _FENCED, THINK_OR_CALL)
R1 = _special_tokens("deepseek_r1", _FENCED, OPEN_THINK)
V31 = _special_tokens("deepseek_v31", _CALLS, THINK_OR_CALL)
V32 = _dsml("deepseek_v32", "function_calls")
V4 = _dsml("deepseek_v4", "tool_calls")
V41 = _dsml("deepseek_v41", " calls", " ")


_HOURS = '{"hours": 6}'
_NOT_HOURS = '{"ours": 6}'


def _deepseek_samples(fenced: bool) -> list[Sample]:
    def call(name: str, arguments: str) -> str:
        inner = (
            f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```" if fenced else f"{name}<｜tool▁sep｜>{arguments}"
        )
        return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"

    calls = call("tide", '{"port": "Brest", "hours": 6}') + call("now", "{}")
    section = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"
    return [
        Sample(section, BOTH, prefix=""),
        Sample(
            f"Look it up.</think>\n\n{section}<｜end▁of▁sentence｜>", BOTH, reasoning="Look it up.", prefix="<think>"
        ),
        Sample(f"Wait.</think>One moment.{section}", BOTH, content="One moment.", reasoning="Wait.", prefix="<think>"),
    ]


def _parameter(tag: str, key: str, value: str, string: str) -> str:
    return f'<{tag}parameter name="{key}" string="{string}">{value}</{tag}parameter>\n'


def _dsml_samples(wrapper: str, space: str = "") -> list[Sample]:
    d = "｜DSML｜" + space
    arguments = _parameter(d, "port", "Brest", "true") + _parameter(d, "hours", "6", "false")
    call = f'<{d}invoke name="tide">\n{arguments}</{d}invoke>\n'
    return [
        Sample(f"<｜DSML｜{wrapper}>\n{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})]),
        Sample(
            f"Hm.</think>\n\n<｜DSML｜{wrapper}>\n{call}{call}</｜DSML｜{wrapper}>",
            [("tide", {"port": "Brest", "hours": 6})] * 2,
            reasoning="Hm.",
            prefix="<think>",
        ),
        Sample(
            f"So I ask.\n\n<｜DSML｜{wrapper}>\n{call}</｜DSML｜{wrapper}>",
            [("tide", {"port": "Brest", "hours": 6})],
            reasoning="So I ask.",
            prefix="<think>",
        ),
        Sample(
            f"One moment.\n{call}{call}Done.",
            [("tide", {"port": "Brest", "hours": 6})] * 2,
            content="One moment.\n\nDone.",
            tools=None,
        ),
        Sample(f"<｜DSML｜toolcalls>\n{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})]),
        Sample(
            f'<｜DSML｜{wrapper}><{d}invoke name="f"><{d}parameter name="a" string="true">x <b><{d}'
            f'parameter name="b" string="true">y</{d}parameter></{d}invoke></｜DSML｜{wrapper}>',
            [("f", {"a": "x <b>", "b": "y"})],
            tools=None,
        ),
        Sample(
            f'<｜DSML｜{wrapper}><{d}invoke name="now"/>\n<{d}invoke name="tide">\n'
            f'{{"port": "Brest"}}\n</{d}invoke><{d}invoke name="now" /></｜DSML｜{wrapper}>',
            [("now", {}), BREST, ("now", {})],
        ),
        # The schema's type takes precedence over `string="true"`; one parameter may contain all arguments of a tool.
        Sample(
            f'<｜DSML｜{wrapper}><{d}invoke name="tide">{_parameter(d, "hours", "6", "true")}'
            f"{_parameter(d, 'port', '42', 'true')}</{d}invoke></｜DSML｜{wrapper}>",
            [("tide", {"hours": 6, "port": "42"})],
        ),
        Sample(
            f'<｜DSML｜{wrapper}><{d}invoke name="tide">{_parameter(d, "arguments", _HOURS, "false")}</{d}'
            f"invoke></｜DSML｜{wrapper}>",
            [("tide", {"hours": 6})],
        ),
        Sample(
            f'<｜DSML｜{wrapper}><{d}invoke name="tide">{_parameter(d, "arguments", _NOT_HOURS, "false")}</{d}'
            f"invoke></｜DSML｜{wrapper}>",
            [("tide", {"arguments": {"ours": 6}})],
        ),
        Sample(
            f'Say <{d}invoke name="tide"> in thought</think>Done.',
            content="Done.",
            reasoning=f'Say <{d}invoke name="tide"> in thought',
            prefix="<think>",
        ),
    ]


SAMPLES = {
    "deepseek": _deepseek_samples(True),
    "deepseek_v3": _deepseek_samples(True),
    "deepseek_r1": _deepseek_samples(True)[1:],
    "deepseek_v31": _deepseek_samples(False),
    "deepseek_v32": _dsml_samples("function_calls"),
    "deepseek_v4": _dsml_samples("tool_calls"),
    "deepseek_v41": _dsml_samples(" calls", " "),
}

FAMILY = Family(
    formats=(
        DEEPSEEK,
        V3,
        R1,
        V31,
        V32,
        V4,
        V41,
    ),
    names={
        "deepseekv3": "deepseek_v3",
        "deepseekv31": "deepseek_v31",
        "deepseekv32": "deepseek_v32",
        "deepseek_v3_0324": "deepseek_v3",
        "deepseek_v3_1": "deepseek_v31",
    },
    reasoning={
        "deepseek": _UNDECIDED,
        "deepseek-r1": OPEN_THINK,
        "holo2": OPEN_THINK,
        "iquest_q1": OPEN_THINK,
        "deepseek-v3": THINK_OR_CALL,
        "deepseek-v3-0324": THINK_OR_CALL,
        "deepseek-v3.1": THINK_OR_CALL,
        "deepseek-v31": THINK_OR_CALL,
        "deepseek-v32": THINK,
        "deepseek-v4": THINK,
        "deepseek-v41": THINK,
    },
    signs=(
        Sign(
            name="deepseek_v4",
            what="the template writes all arguments as one DSML parameter, which models do not",
            test=lambda evidence: (
                "<｜DSML｜tool_calls>" in evidence.call and 'parameter name="arguments"' in evidence.call
            ),
            apply=calls(V4),
            used_for="its calls",
        ),
        own_markers(V3),
        own_markers(V31),
        own_markers(V32),
        own_markers(V4),
    ),
    samples=SAMPLES,
)
