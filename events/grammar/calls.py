"""Tool calls as nodes: what `events.parsing` reads is what this writes, from the same description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from events.formats.output_format import Tools
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, pattern, sequence, star
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

    def section(self, functions: Sequence[Function], *, parallel: bool) -> Node:
        """One call, or with `parallel` one and more, with everything around them."""
        tools = self.tools
        call = self.one_of(functions)
        calls = sequence(call, star(sequence(self._separator(), call))) if parallel else call
        if tools.style == "json" and tools.json.array:
            calls = sequence(constant("["), calls, constant("]"))
        if tools.repeats_section:
            one = sequence(self._literal(tools.section_start), call, self._literal(tools.section_end))
            return sequence(one, star(one)) if parallel else one
        return sequence(self._literal(tools.section_start), calls, self._literal(tools.section_end))

    def one_of(self, functions: Sequence[Function]) -> Node:
        """One call of any of the functions. What all of them share stands outside the choice: it keeps the grammar
        small, and the backend's mask is wrong where alternatives end in the same token (xgrammar 0.2.8)."""
        write = self._json_call if self.tools.style == "json" else self._tag_call
        body = either(*(write(function) for function in functions))
        return sequence(self._literal(self.tools.call_start), body, self._literal(self.tools.call_end))

    def _literal(self, text: str) -> Node:
        return self.alphabet.literal(text) if text else EMPTY

    def _separator(self) -> Node:
        tools = self.tools
        if tools.style == "json" and tools.json.array:
            return constant(tools.call_separator or ", ")
        return self._literal(tools.call_separator)

    def _json_call(self, function: Function) -> Node:
        keys = self.tools.json
        arguments = self.alphabet.json(dict(function.schema))
        if keys.name_is_key:
            return sequence(constant("{" + quoted(function.name) + ": "), arguments, constant("}"))
        head = "{" + f"{quoted(keys.name)}: {quoted(function.name)}, {quoted(keys.arguments)}: "
        inner = sequence(constant(head), arguments, self._json_id(), constant("}"))
        if not keys.wrapper:
            return inner
        return sequence(constant('{"type": "function", ' + f"{quoted(keys.wrapper)}: "), inner, constant("}"))

    def _json_id(self) -> Node:
        if self.tools.id.position != "key" or not self.tools.json.id:
            return EMPTY
        return sequence(constant(f', {quoted(self.tools.json.id)}: "'), pattern(ID_PATTERN), constant('"'))

    def _tag_call(self, function: Function) -> Node:
        tools = self.tools
        return sequence(
            self._id("before_name"),
            self._literal(tools.name_prefix),
            constant(function.name),
            self._suffix(tools.name_suffix),
            self._id("between"),
            self._literal(tools.arguments.start),
            self._arguments(function),
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

    def _arguments(self, function: Function) -> Node:
        style = self.tools.arguments
        schema = function.schema
        values = ValueWriter(style, self.alphabet, schema)
        match style.style:
            case "json":
                return self.alphabet.json(dict(schema))
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

    def _tagged(self, member: Member, values: ValueWriter) -> Node:
        style = self.tools.arguments
        head = sequence(
            self._literal(style.name_prefix), constant(member.name), self._literal(style.name_suffix),
            self._type(member), self._literal(style.value_prefix),
        )  # fmt: skip
        return sequence(head, values.closed(member.schema, style.value_suffix))

    def _type(self, member: Member) -> Node:
        style = self.tools.arguments
        if not style.type_prefix:
            return EMPTY
        is_string = member.schema.get("type") == "string"
        return sequence(
            self._literal(style.type_prefix),
            constant("true" if is_string else "false"),
            self._literal(style.type_suffix),
        )
