"""Tool calls as nodes: what `events.parsing` reads is what this writes, from the same description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from events.formats.output_format import Tools
from events.grammar.nodes import EMPTY, SPACE, Alphabet, Node, constant, either, pattern, sequence, spaced, star
from events.grammar.values import Member, ValueWriter, quoted

ID_PATTERN = "[A-Za-z0-9_-]{1,40}"
INDEX_PATTERN = "[0-9]{1,3}"


class Function(msgspec.Struct, frozen=True):
    """A declared tool: its name and the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


class CallWriter:
    """Writes the grammar of calls in one format."""

    def __init__(self, tools: Tools, alphabet: Alphabet) -> None:
        self.tools = tools
        self.alphabet = alphabet

    @property
    def trigger(self) -> str:
        """The first thing that a call's text holds for certain, as the parser looks for it; "" if there is none."""
        tools = self.tools
        before = tools.id.prefix if tools.id.position == "before_name" else ""
        marks = (tools.section_start, tools.call_start, before, tools.name_prefix)
        first = next((mark.strip() for mark in marks if mark.strip()), "")
        return first.removesuffix("[").strip() or first

    def section(self, functions: Sequence[Function], *, parallel: bool) -> Node:
        """One call, or with `parallel` one and more, with everything around them."""
        tools = self.tools
        call = self.one_of(functions)
        calls = sequence(call, star(sequence(self._separator(), call))) if parallel else call
        start, end = tools.section_start, tools.section_end
        if tools.style == "json" and tools.json.array:
            start = start if start.rstrip().endswith("[") else start + "["
            end = end if end.lstrip().startswith("]") else "]" + end
        if tools.repeats_section:
            one = sequence(self._literal(start), call, self._literal(end))
            return sequence(one, star(one)) if parallel else one
        return sequence(self._literal(start), calls, self._literal(end))

    def one_of(self, functions: Sequence[Function]) -> Node:
        """One call of any of the functions. What all of them share stands outside the choice."""
        write = self._json_call if self.tools.style == "json" else self._tag_call
        body = either(*(write(function) for function in functions))
        return sequence(self._literal(self.tools.call_start), body, self._literal(self.tools.call_end))

    def arguments(self, function: Function) -> Node:
        """The arguments alone, in the format's style."""
        style, schema = self.tools.arguments, function.schema
        values = ValueWriter(style, self.alphabet, schema)
        match style.style:
            case "json":
                return self.alphabet.json(arguments_schema(schema))
            case "tagged":
                return values.listed(schema, lambda m: self._tagged(m, values), self._literal(style.separator))
            case "python":
                return values.listed(
                    schema, lambda m: sequence(constant(f"{m.name}="), values.python(m.schema)), constant(", ")
                )
            case "object":
                return values.listed(schema, values.bare_member, constant(","))
            case "nested":
                return values.listed(schema, lambda m: values.element(m.name, m.schema), EMPTY)

    def _literal(self, text: str) -> Node:
        return self.alphabet.literal(text) if text else EMPTY

    def _separator(self) -> Node:
        tools = self.tools
        bare = not (tools.section_start or tools.call_start or tools.name_prefix)
        if tools.style == "json" and tools.json.array:
            return constant(tools.call_separator or ", ")
        return self._literal(tools.call_separator or ("\n" if bare else ""))

    def _json_call(self, function: Function) -> Node:
        keys, name = self.tools.json, quoted(function.name)
        arguments = self.alphabet.json(arguments_schema(function.schema))
        if keys.name_is_key:
            return sequence(spaced("{" + name + ":", ""), SPACE, arguments, constant("}"))
        head = spaced("{" + quoted(keys.name) + ":", name + ",", quoted(keys.arguments) + ":")
        inner = sequence(head, SPACE, arguments, self._json_id(), constant("}"))
        if not keys.wrapper:
            return inner
        return sequence(spaced('{"type":', '"function",', quoted(keys.wrapper) + ":"), SPACE, inner, constant("}"))

    def _json_id(self) -> Node:
        if not self.tools.json.id:
            return EMPTY
        head = sequence(constant(","), SPACE, constant(quoted(self.tools.json.id) + ":"), SPACE, constant('"'))
        return sequence(head, pattern(ID_PATTERN), constant('"'))

    def _tag_call(self, function: Function) -> Node:
        tools = self.tools
        name = escape(function.name) if tools.name_entities else function.name
        return sequence(
            self._id("before_name"),
            self._literal(tools.name_prefix),
            constant(name),
            self._id("between"),
            self._suffix(tools.name_suffix),
            self._literal(tools.arguments.start),
            self.arguments(function),
            self._literal(tools.arguments.end),
            self._id("after_arguments"),
        )

    def _suffix(self, text: str) -> Node:
        before, index, after = text.partition("{index}")
        return sequence(self._literal(before), pattern(INDEX_PATTERN) if index else EMPTY, self._literal(after))

    def _id(self, position: str) -> Node:
        spec = self.tools.id
        if spec.position != position:
            return EMPTY
        return sequence(self._literal(spec.prefix), pattern(ID_PATTERN), self._literal(spec.suffix))

    def _tagged(self, member: Member, values: ValueWriter) -> Node:
        style = self.tools.arguments
        head = sequence(self._literal(style.name_prefix), constant(member.name), self._literal(style.name_suffix))
        if not style.type_prefix:
            return sequence(head, self._literal(style.value_prefix), values.closed(member.schema, style.value_suffix))
        text, other = values.typed(member.schema, style.value_suffix)
        return sequence(
            head, either(*(self._declared(kind, value) for kind, value in (("true", text), ("false", other)) if value))
        )

    def _declared(self, kind: str, value: Node) -> Node:
        """A value behind its declared type: "true" for a string's text, "false" for JSON."""
        style = self.tools.arguments
        return sequence(
            self._literal(style.type_prefix), constant(kind), self._literal(style.type_suffix),
            self._literal(style.value_prefix), value,
        )  # fmt: skip


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's parameters, which are an object whatever the schema leaves unsaid."""
    return dict(schema) if "type" in schema or "$ref" in schema else {"type": "object", **schema}
