"""Phases T4 to T6: arguments whose names are outside of JSON, from the text between known words.

A call with two arguments consists of five stretches: name to first key, key to value, value to second key, second key
to value, value to the end. The common parts of the stretches around the two arguments are the markers of an argument.
"""

from __future__ import annotations

import msgspec

from events.formats.output_format import Arguments
from events.template import probe as words
from events.template.difference import common_prefix, common_suffix, is_marker, segments
from events.template.rendered_calls import CallRenderer

NUMBER = "170017"


class Stretches(msgspec.Struct, frozen=True, kw_only=True):
    """The text between known words. name: function name to first key. key: first key to its value. middle: value to
    second key. end: the rest."""

    name: str
    key: str
    middle: str
    end: str


class TaggedAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The description of the arguments.

    name_suffix: the text between the function's name and the first argument. behind: the text after the last value that
    belongs to its argument. end_of_arguments: the index in the text at which that ends. lead: the text that opens an
    argument; the name's suffix ends before it.
    """

    arguments: Arguments
    name_suffix: str
    behind: str
    end_of_arguments: int
    lead: str = ""

    def end_in(self, text: str, value: str) -> int:
        """Return the index at which the arguments end whose last value is `value`."""
        position = text.find(value) + len(value)
        return position + len(common_prefix(text[position:], self.behind))

    def name_suffix_in(self, text: str, name: str) -> str:
        position = text.find(name) + len(name)
        stretch = text[position : text.find(words.ARGUMENT, position)]
        return stretch[: len(stretch) - len(self.lead)] if self.lead and stretch.endswith(self.lead) else stretch


def _stretches(text: str, first: str = words.VALUE, second: str = words.VALUE_TWO) -> Stretches | None:
    positions = [text.find(words.FUNCTION)]
    for needle in (words.ARGUMENT, first, words.ARGUMENT_TWO, second):
        positions.append(text.find(needle, positions[-1]))
        if positions[-1] < 0:
            return None
    return Stretches(
        name=text[positions[0] + len(words.FUNCTION) : positions[1]],
        key=text[positions[1] + len(words.ARGUMENT) : positions[2]],
        middle=text[positions[2] + len(first) : positions[3]],
        end=text[positions[4] + len(second) :],
    )


def analyse_tagged(renderer: CallRenderer, text: str) -> TaggedAnalysis | None:
    """Analyse a rendering of one call with two arguments. Return None if a name, a key or a value is missing."""
    s = _stretches(text)
    if s is None:
        return None
    value_end = text.find(words.VALUE_TWO) + len(words.VALUE_TWO)
    if words.ARGUMENT in s.middle:
        # Elements that are named after their keys: `<key>value</key>`.
        closing, rest = s.middle.split(words.ARGUMENT, 1)
        prefix = closing[: closing.rfind("</")] if "</" in closing else ""
        opening = common_suffix(s.name, rest) or "<"
        behind = s.end[: s.end.find(words.ARGUMENT_TWO) + len(words.ARGUMENT_TWO)]
        behind += common_prefix(s.end[len(behind) :], ">")
        return TaggedAnalysis(
            arguments=Arguments(style="nested", element_prefix=prefix.strip()),
            name_suffix=s.name[: len(s.name) - len(opening)],
            behind=behind,
            end_of_arguments=value_end + len(behind),
            lead=opening,
        )
    if s.name.rstrip().endswith("(") and s.key.strip()[:1] == "=":
        # `NAME(key="value", key=1)`: Python literals up to the closing parenthesis.
        quote = s.key.strip()[1:].strip()
        behind = common_prefix(s.end, quote) if quote else ""
        arguments = Arguments(style="python", separator=s.middle[len(quote) :])
        return TaggedAnalysis(
            arguments=arguments, name_suffix=s.name, behind=behind, end_of_arguments=value_end + len(behind)
        )
    if s.name.rstrip().endswith("{") and s.key.strip()[:1] == ":":
        # `NAME{key:"value",key:1}`: bare keys, and strings in the model's own quotes.
        quote = s.key.strip()[1:].strip()
        behind = quote if quote and s.end.startswith(quote) else ""
        arguments = Arguments(style="object", quote=quote, separator=s.middle[len(quote) :])
        return TaggedAnalysis(
            arguments=arguments, name_suffix=s.name, behind=behind, end_of_arguments=value_end + len(behind)
        )
    # The same call with a number in place of the first string shows whether the template declares types.
    text_with_number = renderer.one({words.ARGUMENT: int(NUMBER), words.ARGUMENT_TWO: words.VALUE_TWO})
    typed = _stretches(text_with_number, NUMBER) if text_with_number else None
    return _tagged_arguments(s, typed, value_end)


def _tagged_arguments(s: Stretches, typed: Stretches | None, value_end: int) -> TaggedAnalysis:
    """Analyse one block per argument, such as `<parameter=KEY>VALUE</parameter>`. typed: the stretches of the same call
    with a number as its first value."""
    quoted = s.key.endswith('"') and s.middle.startswith('"') and s.end.startswith('"')
    if quoted and typed is not None and not typed.key.endswith('"'):
        # JSON quotes around a string, but not around a number, belong to the value.
        s = msgspec.structs.replace(s, key=s.key[:-1], middle=s.middle[1:], end=s.end[1:])
    value_suffix = common_prefix(s.middle, s.end)
    rest = s.middle[len(value_suffix) :]
    name_prefix = common_suffix(s.name, rest)
    name_suffix, type_prefix, type_suffix, value_prefix = _around_value(s.key, typed.key if typed else s.key)
    declared = s.key[len(name_suffix + type_prefix) : len(s.key) - len(type_suffix + value_prefix)]
    arguments = Arguments(
        style="tagged",
        name_prefix=name_prefix,
        name_suffix=name_suffix,
        type_prefix=type_prefix,
        type_suffix=type_suffix,
        type_words="names" if declared == "string" else "is_string",
        value_prefix=value_prefix,
        value_suffix=value_suffix,
        separator=rest[: len(rest) - len(name_prefix)],
    )
    return TaggedAnalysis(
        arguments=arguments,
        name_suffix=s.name[: len(s.name) - len(name_prefix)],
        behind=value_suffix,
        end_of_arguments=value_end + len(value_suffix),
        lead=name_prefix,
    )


def _around_value(string: str, number: str) -> tuple[str, str, str, str]:
    """Return (name_suffix, type_prefix, type_suffix, value_prefix), given the text between a key and its value for a
    string and for a number. If the two differ, the template declares the type (`string="true"`)."""
    if string == number:
        name_suffix, value_prefix = _split_value_prefix(string)
        return name_suffix, "", "", value_prefix
    prefix_size = _common(string, number)
    suffix_size = _common(string[prefix_size:][::-1], number[prefix_size:][::-1])
    before, behind = string[:prefix_size], string[len(string) - suffix_size :] if suffix_size else ""
    middle = string[prefix_size : len(string) - suffix_size]
    while before and before[-1].isalnum():  # `true` and `false` share no first letter, `string` and `str` would
        before = before[:-1]
    while behind and behind[0].isalnum():
        behind = behind[1:]
    if not middle.strip():
        name_suffix, value_prefix = _split_value_prefix(string)
        return name_suffix, "", "", value_prefix
    closing = before.find('"') + 1 if before.startswith('"') else 0
    bracket = len(behind) - 1 if behind.endswith(">") and len(behind) > 1 else len(behind)
    return before[:closing], before[closing:], behind[:bracket], behind[bracket:]


def _common(one: str, other: str) -> int:
    size = 0
    while size < min(len(one), len(other)) and one[size] == other[size]:
        size += 1
    return size


def _split_value_prefix(text: str) -> tuple[str, str]:
    """Return (name_suffix, value_prefix): the last whole marker opens the value; without one only line breaks do."""
    parts = segments(text)
    marks = [index for index, part in enumerate(parts) if is_marker(part)]
    if marks and (len(marks) > 1 or marks[0] > 0):
        return "".join(parts[: marks[-1]]), "".join(parts[marks[-1] :])
    bare = text.rstrip()
    return bare, text[len(bare) :]
