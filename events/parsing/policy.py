"""A request's settings for parsing: what to look for, and what to do where servers differ.

None means the setting of the format (`events.formats.output_format.Tools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from events.parsing.schema import Schema


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one request's output is parsed.

    tools: name → parameter schema of the declared tools; None: unknown, any name is accepted; {}: there are no tools,
    and what looks like a call is content. extract_reasoning: False leaves reasoning in the content, including its
    markers. parallel: False keeps only the first call. distinct: the first call that repeats an earlier one ends the
    calls and is left out; a maximum number of calls ends them as well (see `events.repeated_calls`). only_calls: a
    grammar allows nothing but calls, so that every object and every fenced list is read as calls, and is streamed.
    wait_for_id: if the format writes a call's id after its arguments, announce the call when the id is known (and do
    not stream its arguments); False announces it at once under a generated id. json_content: the request wants a JSON
    answer; a code fence around it is left out. unmarked: "lenient" also accepts calls in a code fence or in another
    family's markers at the beginning of the answer, if they name a declared tool and fit its schema; "strict" leaves
    them in the content. undeclared, failed, truncated, bare, boundaries: see Tools and OutputFormat. failed may also be
    "error": the first text after an opening marker that is not a call ends the run (`tool_call_parse_error` in the
    streaming specification).
    """

    tools: Mapping[str, Schema] | None = None
    extract_reasoning: bool = True
    parallel: bool = True
    distinct: bool = False
    only_calls: bool = False
    wait_for_id: bool = True
    json_content: bool = False
    unmarked: Literal["strict", "lenient"] = "lenient"
    undeclared: Literal["keep", "drop", "content"] | None = None
    failed: Literal["content", "text", "drop", "call", "error"] | None = None
    truncated: Literal["keep", "name", "drop"] | None = None
    bare: Literal["never", "declared", "always"] | None = None
    boundaries: Literal["lenient", "strict"] | None = None


def declared_tools(tools: Iterable[Any] | None) -> dict[str, Schema] | None:
    """Return the parameter schemas by tool name, from AG-UI tools (objects with `name` and `parameters`) or OpenAI's
    dictionaries."""
    if tools is None:
        return None
    declared: dict[str, Schema] = {}
    for tool in tools:
        entry = tool if isinstance(tool, Mapping) else {"name": tool.name, "parameters": tool.parameters}
        entry = entry.get("function", entry) if isinstance(entry.get("function", {}), Mapping) else entry
        if isinstance(name := entry.get("name"), str):
            declared[name] = entry.get("parameters", entry.get("input_schema"))
    return declared
