"""A checkpoint's own description of its output: `response_template` in tokenizer_config.json.

transformers parses messages with it (https://huggingface.co/docs/transformers/main/chat_response_parsing): regions
between an opening and a closing marker, each with its kind of content. Here it becomes the parts of an `OutputFormat`.
It takes precedence over the analysis of the chat template. If both have the same markers, the analysis is used, since
it also has their white space, ids and separators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from events.formats.fields import texts
from events.formats.output_format import (
    Arguments,
    Content,
    Description,
    JsonKeys,
    Reasoning,
    Tools,
)
from events.template.analyser import TemplateAnalysis

_REASONING = ("thinking", "reasoning_content", "reasoning")
_GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()\\]|\\.)*\)")
_SPACE = re.compile(r"\\s[*+]\??|\(\?:\^\|((?:[^()\\]|\\.)*)\)|\\n\?|\.\*\?")
_META = re.compile(r"(?<!\\)(?:\\\\)*[.^$*+?{}\[\]|()]")


class _NotExpressible(Exception):
    """An `OutputFormat` cannot express a region; the message says why."""


class _Field(msgspec.Struct):
    """One region of a `response_template`."""

    open: str | list[str] = ""
    open_pattern: str = ""
    close: str | list[str] = ""
    close_pattern: str = ""
    content: str = "text"
    content_args: dict[str, Any] = {}
    transform: Any = None
    transform_each: bool = False

    @property
    def opens(self) -> tuple[str, ...]:
        return _literals(self.open) or _literal_pattern(self.open_pattern)

    @property
    def closes(self) -> tuple[str, ...]:
        return _literals(self.close) or _literal_pattern(self.close_pattern)


class _Spec(msgspec.Struct):
    fields: dict[str, _Field]
    version: int = 1


def apply_response_template(
    analysis: TemplateAnalysis, response_template: Mapping[str, object] | None
) -> TemplateAnalysis:
    """Return the analysis of a chat template with the format that the checkpoint itself describes. Contradictions of
    the two, and regions that cannot be expressed, become warnings."""
    if not response_template:
        return analysis
    try:
        spec = msgspec.convert(dict(response_template), _Spec)
    except msgspec.ValidationError as error:
        return _with_warning(analysis, f"response_template is ignored: {error}")
    if spec.version != 1:
        return _with_warning(analysis, f"response_template is ignored: its version is {spec.version}, and 1 is known")
    output_format, warnings = analysis.output_format, list[str]()
    if output_format.channels is not None or output_format.reader:
        return _with_warning(analysis, "response_template is ignored: this format routes messages by their headers")
    parts: list[tuple[str, Description]] = []
    for name, field in spec.fields.items():
        try:
            if name in _REASONING:
                parts.append(("reasoning", Reasoning(start=field.opens, end=_require_markers(name, field.closes))))
            elif name == "content" and field.opens:
                parts.append(("content", Content(start=field.opens, end=field.closes, wrapped="with_reasoning")))
            elif name == "tool_calls":
                parts.append(("tools", _tools(field)))
        except _NotExpressible as error:
            warnings.append(f"response_template: {name} is read as the chat template shows it, because {error}")
    for key, part in parts:
        before = getattr(output_format, key)
        if _includes_markers(before, part):
            continue
        if before is not None and before != Content():
            warnings.append(
                f"response_template says that {key} is between {_marks(part)}, the chat template shows "
                f"{_marks(before)}; the response_template is used"
            )
        output_format = msgspec.structs.replace(output_format, **{key: part})
    findings = (*analysis.findings, "the checkpoint describes its own output in response_template, which is read first")
    return msgspec.structs.replace(
        analysis, output_format=output_format, findings=findings, warnings=(*analysis.warnings, *warnings)
    )


def _with_warning(analysis: TemplateAnalysis, warning: str) -> TemplateAnalysis:
    return msgspec.structs.replace(analysis, warnings=(*analysis.warnings, warning))


def _tools(field: _Field) -> Tools:
    """Return the calls of a region. Its transform says where their name and arguments are."""
    function = field.transform.get("function") if isinstance(field.transform, Mapping) else None
    name, arguments = ("{content.name}", "{content.arguments}") if function == "{content}" else (None, None)
    if isinstance(function, Mapping):
        name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise _NotExpressible("its transform does not say where the function's name and arguments are")
    (close, *_) = _require_markers("tool_calls", field.closes)
    group = name.strip("{}")
    if header := _split_at(field.open_pattern, group):
        opening, space, before = header[0].partition(r"\s*")
        opening, before = (opening, before) if space else (header[0], "")
        return Tools(
            style="tag",
            call_start=_plain(opening),
            name_prefix=_plain(before),
            name_suffix=_plain(header[1]),
            arguments=_argument_style(field),
            call_end=close,
            bare="never",
        )
    (opening, *_) = _require_markers("tool_calls", field.opens)
    if field.content != "json" or field.content_args:
        raise _NotExpressible(f"content {field.content!r} without a name in open_pattern is not known")
    keys = JsonKeys(
        name=name.strip("{}").rpartition(".")[2], arguments=arguments.strip("{}").rpartition(".")[2],
        array=field.transform_each,
    )  # fmt: skip
    if field.transform_each:
        return Tools(style="json", section_start=opening, section_end=close, json=keys)
    return Tools(style="json", call_start=opening, call_end=close, json=keys)


def _argument_style(field: _Field) -> Arguments:
    """Return the arguments of calls whose name is outside of JSON."""
    if field.content == "json" and field.content_args.get("unquoted_keys"):
        delimiters = field.content_args.get("string_delims") or [["", ""]]
        return Arguments(style="object", quote=str(delimiters[0][0]))
    if field.content == "json":
        return Arguments(style="json")
    if field.content != "xml-inline":
        raise _NotExpressible(f"content {field.content!r} is not known")
    around_key = _split_at(str(field.content_args.get("tag_pattern", "")), "key")
    around_value = _split_at(around_key[1], "value") if around_key else None
    if around_key is None or around_value is None:
        raise _NotExpressible("its tag_pattern has no groups called key and value")
    # One bracket closes the key's tag; the rest opens the value. White space around a value is a line break.
    suffix, bracket, opens = around_value[0].partition(">")
    before, behind = ("\n" if r"\s*" in each else "" for each in (opens, around_value[1]))
    parser = field.content_args.get("value_parser") or {}
    return Arguments(
        style="tagged",
        name_prefix=_plain(around_key[0]),
        name_suffix=_plain(suffix + bracket),
        value_prefix=_plain(opens) + before,
        value_suffix=behind + _plain(around_value[1]),
        untyped="json" if parser.get("name") == "json" else "string",
    )


def _split_at(pattern: str, group: str) -> tuple[str, str] | None:
    """Return the parts of a pattern before and after a named group; None if it has no such group."""
    match = next((each for each in _GROUP.finditer(pattern) if each[1] == group), None)
    return None if match is None else (pattern[: match.start()], pattern[match.end() :])


def _literals(value: str | list[str]) -> tuple[str, ...]:
    return ((value,) if value else ()) if isinstance(value, str) else tuple(value)


def _literal_pattern(pattern: str) -> tuple[str, ...]:
    return (_plain(pattern),) if pattern else ()


def _plain(pattern: str) -> str:
    """Return the text that a pattern matches, without white space. Raises _NotExpressible if it is not literal text."""
    text = _SPACE.sub(lambda match: match[1] or "", pattern)
    text = re.sub(r"\\s[*+]\??", "", text)
    if _META.search(text):
        raise _NotExpressible(f"the pattern {pattern!r} is more than literal text")
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text)


def _require_markers(name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    if not texts:
        raise _NotExpressible(f"{name} has no literal marker around it")
    return texts


def _includes_markers(before: Description | None, part: Description) -> bool:
    """Return whether a description has all the markers of `part`, ignoring white space."""
    if before is None:
        return False
    keys = [(each.style, each.json.name, each.json.arguments) for each in (before, part) if isinstance(each, Tools)]
    if len(set(keys)) > 1:
        return False
    return set(_marks(part)) <= set(_marks(before))


def _marks(part: Description) -> list[str]:
    marks = [text.strip().rstrip("[").removeprefix("]").strip() or text.strip() for text in texts(part)]
    return list(dict.fromkeys(mark for mark in marks if mark))
