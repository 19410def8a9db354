"""Settings of one request: what to look for, and what to do where servers differ.

None means: as the format says (`events.formats.output_format.Tools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from events.parsing.schema import Schema


class Policy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one request's output is read.

    tools: name → parameter schema of the declared tools; None: nothing is known and any name is a tool's; {}: there
        are no tools, and what looks like a call is content.
    extract_reasoning: false leaves reasoning in the content, markers included.
    parallel: false keeps the first call only.
    distinct: the first call that repeats an earlier one ends the calls and is left out, and a bounded number of them
        ends them too (see `events.repeated_calls`).
    wait_for_id: where the format writes the call's id behind its arguments, the call is announced when the id is known
        (and its arguments are not streamed); false announces it at once under an id of ours.
    json_content: the answer was asked for as JSON; a code fence around it is left out.
    unmarked: "lenient" also reads calls in a code fence or in another family's markers where the answer begins, if
        they name a declared tool and fit its schema; "strict" leaves them in the content.
    undeclared, failed, truncated, bare, boundaries: see Tools and OutputFormat. failed may also be "error": the first
        text that is no call after an opening marker ends the run (`tool_call_parse_error`, as the streaming
        specification has it).
    """

    tools: Mapping[str, Schema] | None = None
    extract_reasoning: bool = True
    parallel: bool = True
    distinct: bool = False
    wait_for_id: bool = True
    json_content: bool = False
    unmarked: Literal["strict", "lenient"] = "lenient"
    undeclared: Literal["keep", "drop", "content"] | None = None
    failed: Literal["content", "text", "drop", "call", "error"] | None = None
    truncated: Literal["keep", "name", "drop"] | None = None
    bare: Literal["never", "declared", "always"] | None = None
    boundaries: Literal["lenient", "strict"] | None = None


def declared_tools(tools: Iterable[Any] | None) -> dict[str, Schema] | None:
    """Name → parameter schema, from AG-UI tools (objects with `name` and `parameters`) or OpenAI's dictionaries."""
    if tools is None:
        return None
    declared: dict[str, Schema] = {}
    for tool in tools:
        entry = tool if isinstance(tool, Mapping) else {"name": tool.name, "parameters": tool.parameters}
        entry = entry.get("function", entry) if isinstance(entry.get("function", {}), Mapping) else entry
        if isinstance(name := entry.get("name"), str):
            declared[name] = entry.get("parameters", entry.get("input_schema"))
    return declared
