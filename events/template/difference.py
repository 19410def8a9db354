"""Segment-wise differences between two renderings, so that a marker such as `<|im_end|>` is never split.

A text is a sequence of segments: markers (`<...>` or `[WORD]`) and the text between them. Two renderings are compared
from both ends by whole segments, and by characters only within the last plain-text segment (the auto-parser's "tag
boundary fixing", docs/reading-output.md).
"""

from __future__ import annotations

import re

import msgspec

# Bounded, and used only on renderings of our own probes, never on text of users or models. In order: elements that
# consist of three tokens (`<|open|>think<|sep|>`), angle brackets, `[|name|]`, `[NAME]`.
_MARKER = re.compile(
    r"<\|(?:open|close)\|>[^<>\n]{0,60}<\|sep\|>|<[^<>\n]{1,60}>|\[\|[^\[\]\n]{1,40}\|\]|\[/?[A-Z][A-Z_ ]{1,40}\]"
)

THOUGHT_WORD = re.compile(r"think|thought|reason|inner_prefix|inner_suffix|reflect|scratch", re.IGNORECASE)


class Difference(msgspec.Struct, frozen=True):
    """left == prefix + only_left + suffix and right == prefix + only_right + suffix."""

    prefix: str
    only_left: str
    only_right: str
    suffix: str


def segments(text: str) -> list[str]:
    """Split a text into markers and the text between them."""
    parts: list[str] = []
    position = 0
    for match in _MARKER.finditer(text):
        if match.start() > position:
            parts.append(text[position : match.start()])
        parts.append(match.group())
        position = match.end()
    if position < len(text):
        parts.append(text[position:])
    return parts


def is_marker(segment: str) -> bool:
    """Return whether a segment is a marker and not plain text."""
    return _MARKER.fullmatch(segment) is not None


def common_prefix(left: str, right: str) -> str:
    """Return the longest common beginning that does not end within a marker of either text."""
    common: list[str] = []
    for one, other in zip(segments(left), segments(right), strict=False):
        if one != other:
            if not is_marker(one) and not is_marker(other):
                common.append(_common_characters(one, other))
            break
        common.append(one)
    return "".join(common)


def common_suffix(left: str, right: str) -> str:
    """Return the longest common end that does not begin within a marker of either text."""
    common: list[str] = []
    for one, other in zip(reversed(segments(left)), reversed(segments(right)), strict=False):
        if one != other:
            if not is_marker(one) and not is_marker(other):
                common.append(_common_characters(one[::-1], other[::-1])[::-1])
            break
        common.append(one)
    return "".join(reversed(common))


def _common_characters(left: str, right: str) -> str:
    size = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        size += 1
    return left[:size]


def common_prefix_of(texts: list[str]) -> str:
    """Return the common beginning of several texts."""
    if not texts:
        return ""
    result = texts[0]
    for text in texts[1:]:
        result = common_prefix(result, text)
    return result


def compare(left: str, right: str) -> Difference:
    """Compare two texts. Prefix and suffix are as long as possible, the suffix first, since the tail of a prompt is
    what two renderings have in common if a switch also changes the system text (SmolLM3)."""
    suffix = common_suffix(left, right)
    left_rest, right_rest = left[: len(left) - len(suffix)], right[: len(right) - len(suffix)]
    prefix = common_prefix(left_rest, right_rest)
    return Difference(prefix, left_rest[len(prefix) :], right_rest[len(prefix) :], suffix)


def after(text: str, needle: str) -> str:
    """Return the text after the last occurrence of the needle, or the whole text without one."""
    position = text.rfind(needle)
    return text if position < 0 else text[position + len(needle) :]


def between(text: str, first: str, second: str) -> str | None:
    """Return the text between the first needle and the next occurrence of the second; None unless both occur."""
    start = text.find(first)
    if start < 0:
        return None
    start += len(first)
    end = text.find(second, start)
    return None if end < 0 else text[start:end]
