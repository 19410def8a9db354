"""Nodes for tool calls, from the same `OutputFormat` by which `events.parsing` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from events.formats import layout
from events.formats.output_format import Tools
from events.grammar.argument_values import Member, ValueWriter, quoted
from events.grammar.client_lark import in_front_of, in_json
from events.grammar.nodes import (
    EMPTY,
    INDENT,
    LINES,
    SPACE,
    Alphabet,
    Node,
    constant,
    either,
    pattern,
    repeated,
    sequence,
    spaced,
    star,
)
from events.repeated_calls import MOST_CALLS

ID_PATTERN = "[A-Za-z0-9_-]{1,40}"
INDEX_PATTERN = "[0-9]{1,3}"


class Function(msgspec.Struct, frozen=True):
    """A declared tool. schema: the JSON Schema of its arguments. grammar: the Lark grammar of its only argument, which
    is a string."""

    name: str
    schema: Mapping[str, Any]
    grammar: str | None = None


class CallWriter:
    """Writes the grammar of calls in one format."""

    def __init__(self, tools: Tools, alphabet: Alphabet) -> None:
        self.tools = tools
        self.alphabet = alphabet
        self._space = LINES if tools.lines else SPACE

    @property
    def trigger(self) -> str:
        """The marker that begins every call, as the parser looks for it; "" if calls have none."""
        first = layout.call_opener(self.tools)
        return first.removesuffix("[").strip() or first

    def section(self, functions: Sequence[Function], *, parallel: bool) -> Node:
        """Return one call, or with `parallel` one or more, with the markers around them."""
        around = layout.section(self.tools)
        start, end = self._literal(around.start), self._literal(around.end)
        call = self.one_of(functions)
        if around.repeats:
            one = sequence(start, call, end)
            return sequence(one, star(one)) if parallel else one
        calls = sequence(call, star(sequence(self._literal(around.separator), call))) if parallel else call
        return sequence(start, calls, end)

    def one_of(self, functions: Sequence[Function]) -> Node:
        """Return a call of any of the functions. Text that all of them share is outside of the choice."""
        write = self._json_call if self.tools.style == "json" else self._tag_call
        body = either(*(write(function) for function in functions))
        return sequence(self._literal(self.tools.call_start), body, self._literal(self.tools.call_end))

    @property
    def writes_lists(self) -> bool:
        """Whether `listed` applies: calls are JSON objects behind a marker for each call, and are read without it."""
        tools = self.tools
        marked = tools.style == "json" and bool(tools.call_start.strip())
        return marked and not tools.json.name_is_key and tools.bare != "never"

    def listed(self, functions: Sequence[Function]) -> Node:
        """Return the rest of a JSON list of calls, over several lines, after its opening bracket.

        Models that write their calls in a code fence instead of their template's markers write several calls only as a
        list.
        """
        keys = msgspec.structs.replace(self.tools.json, id="", wrapper="")
        writer = CallWriter(msgspec.structs.replace(self.tools, lines=True, json=keys), self.alphabet)
        call = sequence(LINES, either(*map(writer._json_call, functions)), LINES)
        return sequence(call, repeated(sequence(constant(","), call), 0, MOST_CALLS - 1), constant("]"))

    def arguments(self, function: Function) -> Node:
        """Return the arguments alone, in the format's style. Raises ValueError if the function has a grammar and the
        format cannot write one."""
        style, schema = self.tools.arguments, function.schema
        values = ValueWriter(style, self.alphabet, schema)
        if function.grammar is not None and style.style not in ("json", "tagged"):
            raise ValueError("this model's format has no place for a grammar")
        match style.style:
            case "json":
                return self._json_arguments(function)
            case "tagged" if (grammar := function.grammar) is not None:
                return values.listed(schema, lambda m: self._tagged(m, values, grammar), self._literal(style.separator))
            case "tagged":
                some = values.listed(schema, lambda m: self._tagged(m, values), self._literal(style.separator))
                # Templates that write each argument on its own line may write an empty line if there are none.
                lines = self.tools.arguments.value_suffix.endswith("\n")
                if not lines or any(member.required for member in values.members(schema)):
                    return some
                return either(some, constant("\n"))
            case "python":
                return values.listed(
                    schema, lambda m: sequence(constant(f"{m.name}="), values.python(m.schema)), constant(", ")
                )
            case "object":
                return values.listed(schema, values.bare_member, constant(","))
            case "nested":
                return values.listed(schema, lambda m: values.element(m.name, m.schema), EMPTY)

    def _json_arguments(self, function: Function) -> Node:
        if function.grammar is None:
            bound = {"max_whitespace_cnt": INDENT + 1} if self.tools.lines else {}
            return self.alphabet.json(arguments_schema(function.schema), **bound)
        (name,) = function.schema["properties"]
        head = sequence(constant("{"), self._space, constant(f"{quoted(name)}:"), self._space, constant('"'))
        return sequence(head, _grammar(in_json(function.grammar)), constant('"'), self._space, constant("}"))

    def _literal(self, text: str) -> Node:
        return self.alphabet.literal(text) if text else EMPTY

    def _filled(self, items: Sequence[layout.Item], fill: Mapping[str, Node]) -> Node:
        """Return the items in sequence, with each slot replaced by its node in `fill`."""
        return sequence(
            *(self._literal(item.text) if isinstance(item, layout.Text) else fill[item.holds] for item in items)
        )

    def _json_call(self, function: Function) -> Node:
        keys, name = self.tools.json, quoted(function.name)
        arguments = self._json_arguments(function)
        if keys.name_is_key:
            return self._object(sequence(constant(name + ":"), self._space, arguments))
        head = spaced(quoted(keys.name) + ":", name + ",", quoted(keys.arguments) + ":", space=self._space)
        members = sequence(head, self._space, arguments)
        if keys.wrapper:
            head = spaced('"type":', '"function",', quoted(keys.wrapper) + ":", space=self._space)
            members = sequence(head, self._space, self._object(members))
        if keys.id:
            # The id is before or after the other members, as the template writes it.
            number = sequence(
                constant(quoted(self.tools.json.id) + ":"), self._space, constant('"'), pattern(ID_PATTERN)
            )
            number = sequence(number, constant('"'))
            parts = (number, members) if self.tools.json.id_first else (members, number)
            members = sequence(parts[0], constant(","), self._space, parts[1])
        return self._object(members)

    def _object(self, members: Node) -> Node:
        around = self._space if self.tools.lines else EMPTY
        return sequence(constant("{"), around, members, around, constant("}"))

    def _tag_call(self, function: Function) -> Node:
        name = escape(function.name) if self.tools.name_entities else function.name
        fill = {
            "name": constant(name),
            "id": pattern(ID_PATTERN),
            "index": pattern(INDEX_PATTERN),
            "arguments": self.arguments(function),
        }
        return self._filled(layout.tag_call(self.tools), fill)

    def _tagged(self, member: Member, values: ValueWriter, grammar: str | None = None) -> Node:
        """Return an argument in tags. grammar: constrains its text."""
        style = self.tools.arguments
        head = self._filled(layout.argument_head(style), {"key": constant(member.name)})
        *before, closes = layout.argument_value(style)  # the end of a value bounds its text, so both are one node
        end = closes.text if isinstance(closes, layout.Text) else ""
        if grammar is not None:
            value = sequence(_grammar(in_front_of(grammar, end.strip())), self._literal(end))
            kind = constant("true" if style.type_words == "is_string" else "string")
            return sequence(head, self._filled(before, {"value": value, "type": kind}))
        if layout.Slot("type") not in before:
            return sequence(head, self._filled(before, {"value": values.closed(member.schema, end)}))
        typed = values.typed(member.schema, end)
        kinds = [{"type": constant(kind), "value": node} for kind, node in typed.items()]
        return sequence(head, either(*(self._filled(before, fill) for fill in kinds)))


def _grammar(text: str) -> Node:
    return {"type": "grammar", "grammar": text, "syntax": "lark"}


def arguments_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return a tool's parameters with the type "object", which a schema may leave out."""
    return dict(schema) if "type" in schema or "$ref" in schema else {"type": "object", **schema}
