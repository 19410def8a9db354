"""Ways of writing reasoning and calls that several families share, for use in the families' modules."""

from __future__ import annotations

from typing import Literal

from events.formats.output_format import Arguments, JsonKeys, Reasoning, Tools


def think(*ended_by: str, start: str = "<think>", end: str = "</think>", opens: bool = False) -> Reasoning:
    """`<think>`...`</think>`. ended_by: tool markers that also end it. opens: the output begins inside reasoning,
    unless the prompt closes it."""
    return Reasoning(start=(start,), end=(end,), ended_by=ended_by, initial="reasoning" if opens else "content")


THINK = think()
THINK_OR_CALL = think("<tool_call>")
OPEN_THINK = think(opens=True)
ARGUMENTS = Tools().json
PARAMETERS = JsonKeys(arguments="parameters")
LIST = JsonKeys(array=True)


def tagged_json(start: str = "<tool_call>\n", end: str = "\n</tool_call>", keys: JsonKeys = ARGUMENTS) -> Tools:
    """Each call is a JSON object between its own tags."""
    return Tools(call_start=start, call_end=end, json=keys)


def listed_json(start: str, end: str, keys: JsonKeys = LIST) -> Tools:
    """All calls are in one JSON list."""
    return Tools(section_start=start, section_end=end, json=keys, call_separator=", ")


FUNCTION_TAG = Arguments(
    style="tagged",
    name_prefix="<parameter=",
    name_suffix=">",
    value_prefix="\n",
    value_suffix="\n</parameter>\n",
    end="</function>",
    untyped="string",
)
"""Each value is on separate lines."""


def function_tag(start: str = "<tool_call>", end: str = "</tool_call>", arguments: Arguments = FUNCTION_TAG) -> Tools:
    """`<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`."""
    return Tools(
        style="tag",
        call_start=f"{start}\n",
        call_end=f"\n{end}",
        name_prefix="<function=",
        name_suffix=">\n",
        arguments=arguments,
        bare="declared",
    )


def argument_tags(tag: str = "", newline: str = "") -> Arguments:
    """`<arg_key>k</arg_key><arg_value>v</arg_value>`. tag: the prefix of every tag's name."""
    key, value = f"{tag}arg_key", f"{tag}arg_value"
    return Arguments(
        style="tagged",
        name_prefix=f"<{key}>",
        name_suffix=f"</{key}>",
        value_prefix=f"{newline}<{value}>",
        value_suffix=f"</{value}>{newline}",
        type_prefix=f"<{tag}arg_type>" if tag else "",
        type_suffix=f"</{tag}arg_type>" if tag else "",
        type_words="names",
    )


def named_in_tag(newline: str = "", truncated: Literal["keep", "name", "drop"] = "keep") -> Tools:
    """`<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`."""
    return Tools(
        style="tag",
        call_start="<tool_call>",
        call_end="</tool_call>",
        name_suffix=newline,
        arguments=argument_tags(newline=newline),
        undeclared="drop",
        truncated=truncated,
    )


def invoke_tags(
    tag: str = "",
    space: str = "",
    *,
    section: tuple[str, str] = ("", ""),
    call: tuple[str, str] = ("", ""),
    typed: bool = False,
    untyped: Literal["json", "string"] = "json",
    undeclared: Literal["keep", "drop"] = "keep",
    bare: Literal["declared", "always"] = "declared",
) -> Tools:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>`.

    tag, space: the prefix of every tag's name. typed: parameters have an attribute `string="true|false"`. section,
    call: the markers around all calls, and around each.
    """
    return Tools(
        style="tag",
        section_start=section[0],
        section_end=section[1],
        call_start=call[0],
        call_end=call[1],
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
        undeclared=undeclared,
        bare=bare,
    )


PYTHON_ARGUMENTS = Arguments(style="python", end=")")


def bare_key_objects(start: str, end: str, quote: str) -> Tools:
    """`call:f{k:<quote>v<quote>,n:1}`. A value without quotes and without a schema is a string."""
    return Tools(
        style="tag",
        call_start=start,
        call_end=end,
        name_prefix="call:",
        name_suffix="{",
        arguments=Arguments(style="object", end="}", quote=quote, separator=",", untyped="string"),
    )
