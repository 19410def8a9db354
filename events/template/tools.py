"""Phase 3: how a template writes tool calls, from renderings of calls that differ in one respect each (T1 to T7).

T1 determines whether the function's name and the arguments' names are inside JSON. The other steps share one idea. In a
rendering of two calls, the texts before the two names have a common end, which opens a call; the texts after the two
calls have a common beginning, which closes it. The rest belongs to the section on the outside and to the separator in
the middle. The same comparison of two arguments of one call finds the markers of an argument.
"""

from __future__ import annotations

import re

import msgspec

from events.formats.output_format import Arguments, CallId, Content, JsonKeys, Tools
from events.template import probe as words
from events.template.difference import common_prefix, common_suffix, is_marker, segments
from events.template.probe import Probe
from events.template.reasoning import ReasoningAnalysis
from events.template.rendered_arguments import analyse_tagged
from events.template.rendered_calls import CallRenderer, JsonSpan, find_object
from events.template.turn_frame import TurnFrame

ONE: dict[str, object] = {words.ARGUMENT: words.VALUE}
PAIR: dict[str, object] = {words.ARGUMENT: words.VALUE, words.ARGUMENT_TWO: words.VALUE_TWO}
_INDENTED, _TRAILING = re.compile(r"^ {2,}"), re.compile(r" {2,}(?=\n?$)")
"""The template's own indentation, which is rendered unless a dash strips it. No model is trained to write it."""
OTHER: dict[str, object] = {words.ARGUMENT: words.VALUE_THREE, words.ARGUMENT_TWO: words.VALUE_FOUR}


class ToolAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the phase.

    tools: the description, None if the template does not write calls. mode: the auto-parser's name for it.
    python_dicts: objects are written as Python displays. leftover: a marker after the calls that has no counterpart
    before them, so that it ends the turn (`<|eom_id|>`).
    """

    tools: Tools | None = None
    mode: str = "none"
    python_dicts: bool = False
    leftover: str = ""
    findings: tuple[str, ...] = ()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The text around calls: before each, after each, between two, around all."""

    section_start: str = ""
    section_end: str = ""
    opening: str = ""
    closing: str = ""
    separator: str = ""


def analyse_tools(probe: Probe, turn: TurnFrame, reasoning: ReasoningAnalysis, content: Content) -> ToolAnalysis:
    if not probe.capabilities.tool_calls:
        return ToolAnalysis()
    renderer = CallRenderer(probe, turn, reasoning, content)
    text = renderer.one(PAIR)
    if text is None or words.FUNCTION not in text:
        renderer.declared = True
        text = renderer.one(PAIR)
    if text is None or words.FUNCTION not in text:
        return ToolAnalysis(findings=("calls are accepted, but their place in the rendering could not be found",))
    objects = find_object(text, words.FUNCTION, words.ARGUMENT, words.VALUE)
    if objects:
        span, keys = _call_object(objects)
        frame = single_frame(text[: span.start], text[span.end :])
        two = renderer.two(ONE, {words.ARGUMENT: words.VALUE_THREE})
        first = find_object(two or "", words.FUNCTION, words.ARGUMENT, words.VALUE)
        second = find_object(two or "", words.FUNCTION_TWO, words.ARGUMENT, words.VALUE_THREE)
        if two is not None and first and second:
            one, other = _call_object(first)[0], _call_object(second)[0]
            if other.start >= one.end:
                frame = split_frame(two[: one.start], two[one.end : other.start], two[other.end :])
        array = frame.section_start.rstrip().endswith("[") and frame.section_end.lstrip().startswith("]")
        if array:
            keys = msgspec.structs.replace(keys, array=True)
        frame, leftover = _without_leftover(frame, renderer.turn)
        if not (frame.section_start + frame.opening).strip():
            frame = msgspec.structs.replace(frame, separator=frame.separator or "; ")
        tools = Tools(
            style="json",
            section_start=frame.section_start,
            section_end=frame.section_end,
            call_start=frame.opening,
            call_end=frame.closing,
            call_separator=frame.separator,
            lines="\n" in text[span.start : span.end],
            id=CallId(position="key") if keys.id else CallId(),
            json=keys,
        )
        return ToolAnalysis(tools=tools, mode="json_native", python_dicts=span.python, leftover=leftover)
    arguments = find_object(text, words.ARGUMENT, words.VALUE, words.VALUE_TWO)
    if arguments:
        return _tag_with_json(renderer, text, arguments[0])
    return _tag_with_tagged(renderer, text)


# --- T1, JSON: the whole call is one object


def _call_object(objects: list[JsonSpan]) -> tuple[JsonSpan, JsonKeys]:
    """Return the object of a call and its keys: the innermost with name and arguments, or the one that wraps it."""
    inner = objects[-1]
    for outer in reversed(objects[:-1]):
        wrapper = next((key for key, value in outer.value.items() if value == inner.value), None)
        if wrapper is not None:
            keys = msgspec.structs.replace(_keys(inner.value), wrapper=wrapper)
            number = _id_key(outer.value)
            if number:
                keys = msgspec.structs.replace(keys, id=number, id_first=_in_front(outer.value, number, wrapper))
            return outer, keys
    return inner, _keys(inner.value)


def _keys(call: dict[str, object]) -> JsonKeys:
    if words.FUNCTION in call:
        return JsonKeys(name_is_key=True)
    name = next((key for key, value in call.items() if value == words.FUNCTION), "name")
    arguments = next((key for key, value in call.items() if words.ARGUMENT in str(value)), "arguments")
    number = _id_key(call)
    return JsonKeys(name=name, arguments=arguments, id=number, id_first=_in_front(call, number, name))


def _in_front(call: dict[str, object], key: str, other: str) -> bool:
    """Return whether one key precedes another."""
    keys = list(call)
    return key in keys and other in keys and keys.index(key) < keys.index(other)


def _id_key(call: dict[str, object]) -> str:
    """Return the key of the call's id, or of the template's own number of the call."""
    for key, value in call.items():
        if value == words.CALL_ID or ("id" in key.lower() and str(value) in ("0", "1")):
            return key
    return ""


def single_frame(before: str, behind: str) -> Frame:
    """Return the frame of a single call: everything around it belongs to the call, except an array's brackets."""
    if before.rstrip().endswith("[") and behind.lstrip().startswith("]"):
        return Frame(section_start=before, section_end=behind)
    return Frame(opening=before, closing=behind)


def split_frame(before: str, middle: str, behind: str) -> Frame:
    """T2: distinguish the frames of section and call by what a second call repeats."""
    opening = common_suffix(before, middle)
    closing = common_prefix(middle[: len(middle) - len(opening)], behind)
    opening, closing = (opening if opening.strip() else ""), (closing if closing.strip() else "")
    separator = middle[len(closing) : len(middle) - len(opening)]
    return Frame(
        section_start=_INDENTED.sub("", before[: len(before) - len(opening)]),
        section_end=_TRAILING.sub("", _INDENTED.sub("", behind[len(closing) :])),
        opening=_INDENTED.sub("", opening),
        closing=_TRAILING.sub("", closing),
        separator=_TRAILING.sub("", separator) if opening and not separator.strip() else separator,
    )


def _without_leftover(frame: Frame, turn: TurnFrame) -> tuple[Frame, str]:
    """Remove a marker after the calls without a counterpart before them, which ends the turn and not the calls."""
    if (end := turn.end.strip()) and end in frame.section_end:
        frame = msgspec.structs.replace(frame, section_end=frame.section_end[: frame.section_end.find(end)])
    opening, closing = _marks(frame.section_start), _marks(frame.section_end)
    if opening and len(closing) > len(opening):  # `<|python_end|><|eom|>` after one `<|python_start|>`
        cut = frame.section_end.rfind(closing[len(opening)])
        section_end, rest = frame.section_end[:cut], frame.section_end[cut:]
        return msgspec.structs.replace(frame, section_end=section_end), rest
    opened = frame.section_start.strip() or (frame.opening.strip() and frame.closing.strip())
    if frame.section_end.strip() and not frame.section_start.strip():
        return msgspec.structs.replace(frame, section_end=""), frame.section_end
    if frame.closing.strip() and not frame.opening.strip() and not opened:
        return msgspec.structs.replace(frame, closing=""), frame.closing
    return frame, ""


def _marks(text: str) -> list[str]:
    return [part for part in segments(text) if is_marker(part)]


# --- T1, tags: the name is outside of JSON


def _tag_with_json(renderer: CallRenderer, text: str, arguments: JsonSpan) -> ToolAnalysis:
    """Analyse calls whose arguments alone are JSON: `NAME` between markers, then `{...}`."""
    name = text.rfind(words.FUNCTION, 0, arguments.start)
    if name < 0:
        return ToolAnalysis(findings=("the name follows the arguments; such calls are not described",))
    name_end = name + len(words.FUNCTION)
    suffixes = [text[name_end : arguments.start]]
    two = renderer.two(PAIR, OTHER)
    other = find_object(two or "", words.ARGUMENT, words.VALUE_THREE)
    frame = single_frame(text[:name], text[arguments.end :])
    if two is not None and other:
        first = find_object(two, words.ARGUMENT, words.VALUE)[0]
        second_name = two.rfind(words.FUNCTION_TWO, 0, other[0].start)
        if second_name > first.end:
            frame = split_frame(two[: two.find(words.FUNCTION)], two[first.end : second_name], two[other[0].end :])
            suffixes.append(two[second_name + len(words.FUNCTION_TWO) : other[0].start])
    return _tag_call(renderer, frame, suffixes, Arguments(style="json"), "tag_with_json", arguments.python)


def _tag_with_tagged(renderer: CallRenderer, text: str) -> ToolAnalysis:
    """Analyse calls whose name and argument names are outside of JSON (T4 to T6 in `arguments`)."""
    analysis = analyse_tagged(renderer, text)
    if analysis is None:
        return ToolAnalysis(findings=("calls are rendered, but their arguments could not be told apart",))
    before, behind = text[: text.find(words.FUNCTION)], text[analysis.end_of_arguments :]
    frame, suffixes = single_frame(before, behind), [analysis.name_suffix]
    two = renderer.two(PAIR, OTHER)
    if two is not None and words.VALUE_TWO in two and words.VALUE_FOUR in two:
        first_end = analysis.end_in(two, words.VALUE_TWO)
        second_name = two.find(words.FUNCTION_TWO, first_end)
        if second_name >= 0:
            frame = split_frame(
                two[: two.find(words.FUNCTION)],
                two[first_end:second_name],
                two[analysis.end_in(two, words.VALUE_FOUR) :],
            )
            suffixes.append(analysis.name_suffix_in(two, words.FUNCTION_TWO))
    mode = "tag_with_tagged" if analysis.arguments.style == "tagged" else analysis.arguments.style
    return _tag_call(renderer, frame, suffixes, analysis.arguments, mode, False)


def _tag_call(
    renderer: CallRenderer, frame: Frame, suffixes: list[str], arguments: Arguments, mode: str, python: bool
) -> ToolAnalysis:
    """Assemble the description of a tag call from its parts."""
    frame, leftover = _without_leftover(frame, renderer.turn)
    call_start, name_prefix = _split_opening(frame.opening)
    name_prefix, name_suffix, call_id = _take_out_id(name_prefix, suffixes, frame.closing)
    if call_id.position == "before_name" and not call_start:  # `<call id="ID" name="NAME">`: what precedes the id opens
        call_start, call_id = call_id.prefix, msgspec.structs.replace(call_id, prefix="")
    closing, frame_closing = frame.closing, frame.closing
    if call_id.position == "after_arguments":
        closing = frame_closing[frame_closing.find(call_id.suffix) + len(call_id.suffix) :] if call_id.suffix else ""
    # (arguments.end, call_end): the call has as many closing markers as opening ones.
    still_open = sum(is_marker(part) for part in segments(call_start))
    parts = segments(closing)
    index = len(parts)
    while index > 0 and still_open > 0:
        index -= 1
        still_open -= is_marker(parts[index])
    if index < len(parts) and index > 0 and not parts[index - 1].strip():
        index -= bool(call_start.strip()) and index == 1
    argument_end, call_end = "".join(parts[:index]), "".join(parts[index:])
    argument_start = ""
    parts = segments(name_suffix)
    marks = [index for index, part in enumerate(parts) if is_marker(part)]
    if arguments.style == "json" and len(marks) >= 2:  # a second marker after the name opens the arguments
        name_suffix, argument_start = "".join(parts[: marks[-1]]), "".join(parts[marks[-1] :])
    tools = Tools(
        style="tag",
        section_start=frame.section_start,
        section_end=frame.section_end,
        call_start=call_start,
        call_end=call_end,
        call_separator=frame.separator,
        name_prefix=name_prefix,
        name_suffix=name_suffix,
        id=call_id,
        arguments=msgspec.structs.replace(arguments, start=argument_start or arguments.start, end=argument_end),
    )
    return ToolAnalysis(tools=tools, mode=mode, python_dicts=python, leftover=leftover)


def _split_opening(opening: str) -> tuple[str, str]:
    """Split into (call_start, name_prefix): markers at the beginning open the call, the rest belongs to the name."""
    call_start = ""
    parts = segments(opening)
    for index, part in enumerate(parts):
        if not is_marker(part) and part.strip():
            break
        following = parts[index + 1] if index + 1 < len(parts) else ""
        call_start += part
        if is_marker(part) and following.strip() and not is_marker(following):
            lead = following[: len(following) - len(following.lstrip())]
            return call_start + lead, opening[len(call_start) + len(lead) :]
    return call_start, opening[len(call_start) :]


def _take_out_id(prefix: str, suffixes: list[str], closing: str) -> tuple[str, str, CallId]:
    """T7: determine the position of the id and remove it from the text around the name. If a template numbers calls,
    `{index}` is put where the suffixes of two calls have 0 and 1."""
    suffix = suffixes[0]
    if len(suffixes) == 2 and suffix != suffixes[1]:
        shared = common_prefix(suffix, suffixes[1])
        rest = suffix[len(shared) :]
        if rest[:1] == "0" and suffixes[1][len(shared) :] == "1" + rest[1:]:
            suffix = shared + "{index}" + rest[1:]
    if "{index}" in suffix:
        return prefix, suffix, CallId(position="in_name")
    if words.CALL_ID in suffix:
        before, behind = suffix.split(words.CALL_ID, 1)
        return prefix, behind, CallId(position="between", prefix=before)
    if words.CALL_ID in prefix:
        before, behind = prefix.split(words.CALL_ID, 1)
        return "", suffix, CallId(position="before_name", prefix=before, suffix=behind)
    if words.CALL_ID in closing:
        before, behind = closing.split(words.CALL_ID, 1)
        return prefix, suffix, CallId(position="after_arguments", prefix=before, suffix=behind)
    return prefix, suffix, CallId()
