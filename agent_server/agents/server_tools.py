"""Tools that run on the server: `@tool` makes one from a function, with a schema from its signature and docstring."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import msgspec
from ag_ui.core import Tool as ToolDeclaration
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from agent_server.agents.tool_context import ToolContext

Kind = Literal["sync", "async", "generator"]
Interrupted = Literal["tell", "ask"]
Approval = bool | Callable[[dict[str, Any]], bool]
_SECTION = re.compile(r"^\s*(args|arguments|parameters|returns?|raises|yields|examples?|notes?)\s*:\s*$", re.IGNORECASE)
_GOOGLE = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.+)$")


class ToolFault(Exception):
    """An error of a tool or in its arguments; the model gets the message as the call's result."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the server runs; `tool` makes one of a function.

    Attributes:
        name: The name by which the model calls it.
        description: What it does, for the model.
        parameters: JSON schema of the arguments.
        call: The function.
        kind: Whether the function is plain, async, or an async generator.
        check: Validates arguments and returns the function's keyword arguments; raises ToolFault.
        context_parameter: The parameter that receives the ToolContext, if there is one.
        time_limit: Time limit of one attempt in seconds; None takes the agent's.
        result_limit: Maximum length of the result in characters; None takes the agent's.
        requires_approval: Whether a person must approve a call first: a bool, or a predicate on the arguments.
        approval_edits: Whether that person may change the arguments.
        approval_seconds: Time limit of the person's answer, in seconds; None for no limit.
        approval_message: The question, or a function that returns it for the arguments.
        retries: How often a call is repeated that timed out or raised an exception other than ToolFault.
        early: Whether a call may start before the model has completed its message, and be cancelled if that message
            fails. Only for tools without side effects.
        at_once: Maximum number of concurrent calls in this server; None takes the server's limit.
        idempotent: Whether a call may be repeated without harm, so that an interrupted one is.
        interrupted: What happens to an interrupted call that is not idempotent: "tell" the model that its outcome is
            unknown, or "ask" a person whether to make it again.

    Raises:
        ValueError: For negative retries, an `at_once` below 1, or another word in `interrupted`.
    """

    name: str
    description: str
    parameters: dict[str, object]
    call: Callable[..., Any]
    kind: Kind
    check: Callable[[dict[str, object]], dict[str, object]]
    context_parameter: str | None = None
    time_limit: float | None = None
    result_limit: int | None = None
    requires_approval: Approval = False
    approval_edits: bool = True
    approval_seconds: float | None = None
    approval_message: str | Callable[[dict[str, Any]], str] | None = None
    retries: int = 0
    early: bool = False
    at_once: int | None = None
    idempotent: bool = False
    interrupted: Interrupted = "tell"

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"tool {self.name}: retries must not be negative, not {self.retries}")
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"tool {self.name}: at_once must be at least 1, not {self.at_once}")
        if self.interrupted not in ("tell", "ask"):
            raise ValueError(f'tool {self.name}: interrupted must be "tell" or "ask", not {self.interrupted!r}')
        if self.early and self.requires_approval is not False:
            raise ValueError(
                f"tool {self.name}: a call that needs approval cannot begin early; set only one of the two"
            )

    def declaration(self) -> ToolDeclaration:
        """The tool as the protocol declares tools."""
        return ToolDeclaration(name=self.name, description=self.description, parameters=self.parameters)

    def needs_approval(self, arguments: dict[str, object]) -> bool:
        """Whether a person must approve the call. A predicate that raises counts as yes."""
        if isinstance(self.requires_approval, bool):
            return self.requires_approval
        try:
            return bool(self.requires_approval(arguments))
        except Exception:
            return True

    def question(self, arguments: dict[str, object]) -> str:
        """The question to the person who approves a call."""
        if callable(self.approval_message):
            return self.approval_message(arguments)
        return self.approval_message or f"Run {self.name}?"


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    requires_approval: Approval = False,
    approval_edits: bool = True,
    approval_seconds: float | None = None,
    approval_message: str | Callable[[dict[str, Any]], str] | None = None,
    time_limit: float | None = None,
    result_limit: int | None = None,
    retries: int = 0,
    early: bool = False,
    at_once: int | None = None,
    idempotent: bool = False,
    interrupted: Interrupted = "tell",
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a tool of a plain function, an async function, or an async generator.

    The schema comes from the annotations, the descriptions from the docstring (its first paragraph, and its `Args:`
    section or `:param x:` lines). A parameter annotated `ToolContext` receives the call's context and is not part of
    the schema. Plain functions run in a thread. The values that an async generator yields are shown as progress; the
    last one is the result.

    Args:
        function: The function, if `@tool` is used without parentheses.
        **settings: `name` and `description`, which replace the function's own, and the attributes of `Tool` from
            `time_limit` to `interrupted`.

    Raises:
        TypeError: For a parameter whose type JSON cannot express.
    """
    if function is None:
        return lambda decorated: _make(decorated, **settings)
    return _make(function, **settings)


def _make(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **settings: Any
) -> Tool:
    summary, documented = read_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function, include_extras=True)
    context = next((key for key, hint in hints.items() if key != "return" and hint is ToolContext), None)
    tool_name = name or str(getattr(function, "__name__", "tool"))
    try:
        model = _arguments_model(function, hints, documented, skip=context)
        parameters = model.model_json_schema(schema_generator=_ArgumentSchema)
        parameters.pop("title", None)
        for each in parameters.get("properties", {}).values():
            each.pop("title", None)
    except PydanticUserError as error:  # a type without a JSON schema
        raise TypeError(
            f"tool {tool_name}: {error.message.partition('. ')[0]}; use annotations that have a JSON schema"
        ) from error
    kind: Kind = "async" if inspect.iscoroutinefunction(function) else "sync"
    if inspect.isasyncgenfunction(function):
        kind = "generator"
    return Tool(
        name=tool_name,
        description=description or summary,
        parameters=parameters,
        call=function,
        kind=kind,
        check=lambda arguments: _validated(model, arguments),
        context_parameter=context,
        **settings,
    )


def _arguments_model(
    function: Callable[..., Any], hints: Mapping[str, Any], documented: Mapping[str, str], *, skip: str | None
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == skip:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {function!r}: {name} must be an ordinary named parameter")
        default = ... if parameter.default is parameter.empty else parameter.default
        reserved = hasattr(BaseModel, name) or name.startswith("_")  # pydantic has another use for the name
        renamed: dict[str, Any] = {"alias": name} if reserved else {}
        field = Field(default, description=documented.get(name), **renamed)
        fields[_RENAMED + name if reserved else name] = (hints.get(name, Any), field)
    return create_model("Arguments", __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


class _ArgumentSchema(GenerateJsonSchema):
    """pydantic's JSON schemas, narrowed to values that pydantic accepts: the grammar constrains a model to the schema,
    so a value that fits it must not fail the call."""

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        """Restrict number and boolean keys to the strings that JSON writes for them, and allow no others."""
        result = super().dict_schema(schema)
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if pattern := _KEYS.get(keys.get("type", "")):
            result["patternProperties"] = {pattern: result.pop("additionalProperties", True)}
        if "patternProperties" in result:
            result["additionalProperties"] = False
        return result

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        """A bounded decimal is a number, since a string cannot be bounded; any other may be a string of digits."""
        options = super().decimal_schema(schema).get("anyOf", ())
        number = next((dict(option) for option in options if option.get("type") != "string"), {"type": "number"})
        if schema.keys() & {"le", "ge", "lt", "gt", "multiple_of"}:
            return number
        return {"anyOf": [number, {"type": "string", "pattern": r"^[+-]?[0-9]+(\.[0-9]+)?$"}]}


_RENAMED = "parameter "
"""Prefix for a parameter name that pydantic reserves; because of the space it cannot clash with a parameter."""
_KEYS = {"integer": "^(0|-?[1-9][0-9]*)$", "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$", "boolean": "^(true|false)$"}


def _validated(model: type[BaseModel], arguments: dict[str, object]) -> dict[str, object]:
    """Convert the arguments to the function's types (models, dates, enums, ...). Raises ToolFault with the errors."""
    try:
        checked = model.model_validate_json(
            json.dumps(arguments)
        )  # as JSON: in JSON mode strict models accept a string for a date
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        summary = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in problems[:5])
        raise ToolFault(f"Invalid arguments: {summary}") from None
    return {name.removeprefix(_RENAMED): getattr(checked, name) for name in type(checked).model_fields}


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description (everything before the first section) and the parameters' descriptions."""
    summary: list[str] = []
    descriptions: dict[str, str] = {}
    section: str | None = None
    last: str | None = None
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section, last = heading[1].lower(), None
        elif sphinx := _SPHINX.match(line):
            section, last = "param", sphinx[1]
            descriptions[sphinx[1]] = sphinx[2].strip()
        elif section in ("args", "arguments", "parameters") and (entry := _GOOGLE.match(line)):
            last = entry[1]
            descriptions[last] = entry[2].strip()
        elif section is None:
            summary.append(line)
        elif last and line.strip() and line[:1].isspace():
            descriptions[last] += " " + line.strip()
    return "\n".join(summary).strip(), descriptions


def read_arguments(text: str) -> dict[str, object]:
    """Parse a call's arguments as the model wrote them. Raises ToolFault if they are not a JSON object."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise ToolFault("The arguments are not valid JSON.") from None
    if not isinstance(arguments, dict):
        raise ToolFault("The arguments must be a JSON object.")
    return arguments


_ANY = TypeAdapter(object)


def result_content(value: object) -> str | list[object]:
    """Convert a tool's return value to the content of TOOL_CALL_RESULT: a string as it is, a list of content parts as
    parts, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_part(item) for item in value):
        return [each.model_dump(mode="json", by_alias=True) if isinstance(each, BaseModel) else each for each in value]
    return _ANY.dump_json(value, by_alias=True).decode()


def _is_part(item: Any) -> bool:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind == "text":
        return isinstance(item, BaseModel) or set(item) <= {"type", "text", "id", "metadata"}
    carries = item.get("source") if isinstance(item, dict) else getattr(item, "source", None)
    return kind in ("image", "audio", "video", "document") and carries is not None


def capped(content: str | list[object], limit: int) -> str | list[object]:
    """Limit a result to `limit` characters: text is cut with a note, parts that are too large become a sentence."""
    if isinstance(content, str):
        return (
            content if len(content) <= limit else content[:limit] + f"\n[cut: {len(content) - limit} more characters]"
        )
    size = len(msgspec.json.encode(content))
    return content if size <= limit else f"[The result is too large: {size} bytes.]"
