"""Formats whose calls name the function outside of JSON: in a tag, or between special tokens."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.formats.output_format import Arguments, CallId, Content, OutputFormat, Reasoning, Tools
from events.formats.reasoning import REASONING

_FUNCTION_TAG = Arguments(
    style="tagged",
    name_prefix="<parameter=",
    name_suffix=">",
    value_prefix="\n",
    value_suffix="\n</parameter>\n",
    end="</function>",
    untyped="string",
)
_FUNCTION_TAG_VERBATIM = msgspec.structs.replace(_FUNCTION_TAG, value_prefix="", value_suffix="</parameter>")
"""Whose values keep their line breaks."""


def _qwen_style(
    name: str,
    reasoning: str,
    start: str = "<tool_call>",
    end: str = "</tool_call>",
    arguments: Arguments = _FUNCTION_TAG,
) -> OutputFormat:
    """`<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`."""
    tools = Tools(
        style="tag",
        call_start=f"{start}\n",
        call_end=f"\n{end}",
        name_prefix="<function=",
        name_suffix=">\n",
        arguments=arguments,
        bare="declared",
    )
    return OutputFormat(name=name, reasoning=REASONING[reasoning], tools=tools, drop=("<|im_end|>",))


def _argument_tags(tag: str = "", newline: str = "") -> Arguments:
    """`<arg_key>k</arg_key><arg_value>v</arg_value>`."""
    key, value = f"{tag}arg_key", f"{tag}arg_value"
    return Arguments(
        style="tagged",
        name_prefix=f"<{key}>",
        name_suffix=f"</{key}>",
        value_prefix=f"{newline}<{value}>",
        value_suffix=f"</{value}>{newline}",
        type_prefix=f"<{tag}arg_type>" if tag else "",
        type_suffix=f"</{tag}arg_type>" if tag else "",
    )


def _glm_style(name: str, newline: str = "", reasoning: str = "glm45", **settings: str) -> OutputFormat:
    """`<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`."""
    tools = Tools(
        style="tag",
        call_start="<tool_call>",
        call_end="</tool_call>",
        name_suffix=newline,
        arguments=_argument_tags(newline=newline),
        undeclared="drop",
        **settings,  # type: ignore[arg-type]
    )
    return OutputFormat(name=name, reasoning=REASONING[reasoning], tools=tools, drop=("<|user|>", "<|observation|>"))


def _hunyuan_style(name: str) -> OutputFormat:
    tools = Tools(
        style="tag",
        section_start="<tool_calls>",
        section_end="</tool_calls>",
        call_start="<tool_call>",
        call_end="</tool_call>",
        name_suffix="<tool_sep>",
        arguments=_argument_tags(),
        undeclared="drop",
    )
    return OutputFormat(name=name, reasoning=REASONING["hunyuan"], tools=tools, spellings=_HUNYUAN_SPELLINGS)


_HUNYUAN_SPELLINGS = tuple(
    (f"<{slash}{tag}:opensource>", f"<{slash}{tag}>")
    for tag in ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value", "think")
    for slash in ("", "/")
)
"""The published models of the fourth generation have a word of their own in every marker."""


def _invoke(tag: str = "", space: str = "", typed: bool = False, untyped: Literal["json", "string"] = "json") -> Tools:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`; typed: with `string="true|false"`."""
    return Tools(
        style="tag",
        name_prefix=f'<{tag}{space}invoke name="',
        name_suffix='">\n',
        arguments=Arguments(
            style="tagged",
            name_prefix=f'<{tag}{space}parameter name="',
            name_suffix='"',
            type_prefix=' string="' if typed else "",
            type_suffix='"' if typed else "",
            value_prefix=">",
            value_suffix=f"</{tag}{space}parameter>\n",
            end=f"</{tag}{space}invoke>\n",
            untyped=untyped,
        ),
    )


def _dsml(name: str, wrapper: str, space: str = "", reasoning: str = "deepseek-v4") -> OutputFormat:
    """DeepSeek's markup: invoke and parameter tags that begin with `<｜DSML｜`."""
    tag = "｜DSML｜"
    start = f"<{tag}{wrapper}>\n"
    tools = _replace(
        _invoke(tag, space, typed=True), section_start=start, section_end=f"</{tag}{wrapper}>", bare="always"
    )
    return OutputFormat(
        name=name,
        reasoning=msgspec.structs.replace(REASONING[reasoning], ended_by=(start,)),
        tools=tools,
        drop=("<｜end▁of▁sentence｜>",),
        spellings=tuple((f"<{tag}{written}>", start) for written in ("tool", "toolcalls") if written != wrapper),
    )


def _replace(tools: Tools, **changes: object) -> Tools:
    """msgspec.structs.replace, typed."""
    return msgspec.structs.replace(tools, **changes)


_DEEPSEEK_CALLS = Tools(
    style="tag",
    section_start="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call_start="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    name_suffix="<｜tool▁sep｜>",
    failed="drop",
)
_DEEPSEEK_FENCED = _replace(
    _DEEPSEEK_CALLS,
    name_prefix="function<｜tool▁sep｜>",
    name_suffix="\n```json\n",
    arguments=Arguments(end="\n```"),
)
_DEEPSEEK_SPELLINGS = tuple(
    (written.replace("▁", variant[0]).replace("｜", variant[1]), written)
    for written in (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
    )
    for variant in (("_", "｜"), ("\\_", "｜"), (" ", "｜"), ("▁", "|"), ("_", "|"))
)


def _deepseek(name: str, tools: Tools, reasoning: str) -> OutputFormat:
    return OutputFormat(
        name=name,
        reasoning=REASONING[reasoning],
        tools=tools,
        drop=("<｜end▁of▁sentence｜>",),
        spellings=_DEEPSEEK_SPELLINGS,
    )


def _plamo(word: str, side: str = "begin") -> str:
    return f"<|plamo:{side}_{word}:plamo|>"


TAGGED_CALLS: dict[str, OutputFormat] = {
    "deepseek": _deepseek("deepseek", _DEEPSEEK_FENCED, "deepseek"),
    "deepseek_v3": _deepseek("deepseek_v3", _DEEPSEEK_FENCED, "deepseek-v3"),
    "deepseek_r1": _deepseek("deepseek_r1", _DEEPSEEK_FENCED, "deepseek-r1"),
    "deepseek_v31": _deepseek("deepseek_v31", _DEEPSEEK_CALLS, "deepseek-v3"),
    "deepseek_v32": _dsml("deepseek_v32", "function_calls"),
    "deepseek_v4": _dsml("deepseek_v4", "tool_calls"),
    "deepseek_v41": _dsml("deepseek_v41", " calls", " "),
    "dots": OutputFormat(
        name="dots",
        reasoning=REASONING["glm45"],
        tools=_replace(_invoke(), section_start="<dots_function_call>\n", section_end="</dots_function_call>"),
    ),
    "glm45": _glm_style("glm45", "\n"),
    "glm47": _glm_style("glm47"),
    "ling3": _glm_style("ling3", "\n", "ling3"),
    "poolside_v1": _glm_style("poolside_v1", "\n", truncated="drop"),
    "hy_v3": _hunyuan_style("hy_v3"),
    "hy_v4": _hunyuan_style("hy_v4"),
    "k2_horizon": OutputFormat(
        name="k2_horizon",
        reasoning=REASONING["k2_horizon"],
        tools=Tools(
            style="tag",
            section_start="<ifm|tool_calls>",
            section_end="</ifm|tool_calls>",
            call_start="<ifm|tool_call>",
            call_end="</ifm|tool_call>",
            arguments=_argument_tags("ifm|"),
        ),
    ),
    "kimi_k2": OutputFormat(
        name="kimi_k2",
        reasoning=REASONING["kimi_k2"],
        tools=Tools(
            style="tag",
            section_start="<|tool_calls_section_begin|>",
            section_end="<|tool_calls_section_end|>",
            call_start="<|tool_call_begin|>",
            call_end="<|tool_call_end|>",
            name_prefix="functions.",
            name_suffix=":{index}<|tool_call_argument_begin|>",
            id=CallId(position="in_name"),
            undeclared="drop",
        ),
        drop=("<|im_end|>",),
    ),
    "mistral": OutputFormat(
        name="mistral",
        reasoning=REASONING["mistral"],
        content=Content(after_calls="drop"),
        tools=Tools(
            style="tag",
            section_start="[TOOL_CALLS]",
            name_suffix="[ARGS]",
            id=CallId(position="between", prefix="[CALL_ID]"),
            repeats_section=True,
            failed="drop",
            truncated="name",
        ),
        drop=("</s>",),
    ),
    "minimax_m2": OutputFormat(
        name="minimax_m2",
        reasoning=REASONING["qwen3"],
        tools=_replace(
            _invoke(untyped="string"),
            section_start="<minimax:tool_call>\n",
            section_end="</minimax:tool_call>",
            undeclared="drop",
        ),
    ),
    "minicpm5": OutputFormat(
        name="minicpm5",
        reasoning=REASONING["think"],
        tools=Tools(
            style="tag",
            name_prefix='<function name="',
            name_suffix='">',
            arguments=Arguments(
                style="tagged",
                name_prefix='<param name="',
                name_suffix='">',
                value_suffix="</param>",
                end="</function>",
            ),
            commit="call",
            undeclared="content",
        ),
        spellings=tuple(
            (f'<{tag}{space}name="', f'<{tag} name="') for tag in ("function", "param") for space in ("", "Ġ")
        ),
    ),
    "muse": OutputFormat(
        name="muse",
        reasoning=REASONING["muse"],
        content=Content(start=("to=user<|message|>",), end=("<|eom|>", "<|eot|>")),
        tools=_replace(_invoke("atem:"), section_start="<atem:function_calls>\n", section_end="</atem:function_calls>"),
        drop=("<|start|>assistant",),
        address=("to=", "<|message|>"),
    ),
    "plamo3": OutputFormat(
        name="plamo3",
        reasoning=REASONING["plamo3"],
        tools=Tools(
            style="tag",
            section_start=_plamo("tool_requests"),
            section_end=_plamo("tool_requests", "end"),
            call_start=_plamo("tool_request"),
            call_end=_plamo("tool_request", "end"),
            name_prefix=_plamo("tool_name"),
            name_suffix=_plamo("tool_name", "end"),
            arguments=Arguments(
                start=_plamo("tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>",
                end=_plamo("tool_arguments", "end"),
            ),
            truncated="name",
        ),
        drop=("<|plamo:tag|>",),
    ),
    "qwen3_coder": _qwen_style("qwen3_coder", "qwen3"),
    "mimo": _qwen_style("mimo", "qwen3", arguments=_FUNCTION_TAG_VERBATIM),
    "step3p5": _qwen_style("step3p5", "step3"),
    "seed_oss": _qwen_style("seed_oss", "seed_oss", "<seed:tool_call>", "</seed:tool_call>"),
    "step3": OutputFormat(
        name="step3",
        reasoning=Reasoning(start=("<think>",), end=("</think>",), initial="reasoning"),
        tools=_replace(
            _invoke("steptml:"),
            section_start="<｜tool_calls_begin｜>",
            section_end="<｜tool_calls_end｜>",
            call_start="<｜tool_call_begin｜>function<｜tool_sep｜>",
            call_end="<｜tool_call_end｜>",
        ),
        spellings=(("<｜tool_call_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>"),),
    ),
}
