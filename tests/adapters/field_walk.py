"""Writes docs/request-forms.md: `python -m tests.adapters.field_walk > docs/request-forms.md`.

Every form that a request can have by the types of the `openai` and `anthropic` packages is asked for alone. A form is a
path to one choice: a field, the type of an item, of a part of content or of a tool, a value of an enumeration. `forms`
makes the smallest request that asks for it out of the annotations, so a new version of a package brings its new forms
along.
"""

from __future__ import annotations

import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, Union

import msgspec
import typing_extensions
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from adapters import anthropic_messages, openai_chat, openai_responses
from adapters.body import KINDS, Inbound, Notes, noting
from adapters.errors import RequestError

DEPTH = 9
"""Of a path; the innermost forms are schemas and sources, which repeat."""
VALUES: Mapping[str, object] = {
    "call_id": "call_1", "tool_call_id": "call_1", "type": "compaction", "tool_use_id": "call_1", "name": "f", "tool_name": "f",
    "input_schema": {"type": "object"}, "parameters": {"type": "object"}, "schema": {"type": "object"},
    "arguments": "{}", "id": "call_1", "max_tokens": 9, "media_type": "image/png", "budget_tokens": 1024, "top_logprobs": 2,
    "image_url": "data:image/png;base64,AA==", "file_data": "data:application/pdf;base64,AA==", "data": "AA==",
    "url": "https://example.com/a", "file_url": "https://example.com/a.pdf", "file_id": "file_1",
    "signature": "", "compact_threshold": 1000, "top_p": 0.5, "definition": "start: \"a\"", "namespace": "",
    "defer_loading": True,
}  # fmt: skip
"""Values of fields whose type says too little; `f` is the tool that every request declares."""


NEEDS: Mapping[str, Mapping[str, object]] = {
    "input_image": {"image_url": "data:image/png;base64,AA=="},
    "input_file": {"file_data": "data:application/pdf;base64,AA=="},
    "file": {"file": {"file_data": "data:application/pdf;base64,AA=="}},
    "function_call_output": {"call_id": "call_1"},
    "local_shell_call_output": {"id": "call_1"},
    "tool_search": {"execution": "client"},
    "json_schema": {"schema": {"type": "object"}, "json_schema": {"name": "f", "schema": {"type": "object"}}},
    "allowed_tools": {
        "tools": [{"type": "function", "name": "f", "function": {"name": "f"}}],
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
    "tool_definition": {"definition": {"name": "g", "input_schema": {"type": "object"}}},
    "system": {"content": "Be brief."},
}
"""What a kind of thing cannot do without although its type says so of no field, by its tag."""


class Form(NamedTuple):
    """path: "input.function_call.status". value: of the whole that the walk began with. without: the whole that does
    not ask for it, None where there is none."""

    path: str
    value: Any
    without: Any = None


def forms(annotation: Any, path: str, seen: tuple[Any, ...] = (), name: str = "") -> Iterator[Form]:
    """Each form of a type. name: of the field that has it."""
    annotation = _bare(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if _is_typed_dict(annotation):
        if annotation not in seen and path.count(".") < DEPTH:
            yield from _object(annotation, path, (*seen, annotation))
    elif origin is Literal:
        for value in arguments:
            yield Form(f"{path}={value}" if len(arguments) > 1 else path, value)
    elif origin in (Union, types.UnionType):
        for each in arguments:
            if each is not type(None):
                yield from forms(each, path, seen, name)
    elif origin is not None and issubclass(origin, typing.Mapping):
        yield Form(path, VALUES.get(name, {}))
    elif origin is not None and issubclass(origin, typing.Iterable):
        for form in forms(arguments[0], path, seen, name):
            yield Form(form.path, [form.value], None if form.without is None else [form.without])
    elif annotation is bool and name not in VALUES:
        yield from (Form(f"{path}={str(value).lower()}", value) for value in (True, False))
    elif (value := _scalar(annotation, name)) is not None:
        yield Form(path, value)


def _object(kind: Any, path: str, seen: tuple[Any, ...]) -> Iterator[Form]:
    """The object with its required fields alone, then each field's forms in it."""
    fields = annotations_of(kind)
    least = smallest(kind)
    tag = next((name for name in ("type", "role") if name in least and _literals(fields[name])), "")
    if tag and _literals(fields[tag]) == 1:
        path = f"{path}.{least[tag]}"
    yield Form(path, least)
    for name, hint in fields.items():
        if name == tag and _literals(hint) == 1:
            continue
        without = least if name not in least else None
        for form in forms(hint, f"{path}.{name}", seen, name):
            inner = without if form.without is None else {**least, name: form.without}
            yield Form(form.path, {**least, name: form.value}, inner)


def _literals(annotation: Any) -> int:
    annotation = _bare(annotation)
    return len(typing.get_args(annotation)) if typing.get_origin(annotation) is Literal else 0


def smallest(annotation: Any, name: str = "") -> Any:
    """The smallest value of a type."""
    annotation = _bare(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if _is_typed_dict(annotation):
        fields = annotations_of(annotation)
        least = {key: smallest(hint, key) for key, hint in fields.items() if _is_required(annotation, key, hint)}
        return {**least, **NEEDS.get(str(least.get("type", least.get("role"))), {})}
    if origin is Literal:
        return arguments[0]
    if name in VALUES:
        return VALUES[name]
    if origin in (Union, types.UnionType):
        return smallest(next(each for each in arguments if each is not type(None)), name)
    if origin is not None and issubclass(origin, typing.Mapping):
        return {}
    if origin is not None and issubclass(origin, typing.Iterable):
        return [smallest(arguments[0], name)]
    return _scalar(annotation, name)


def _scalar(annotation: Any, name: str) -> Any:
    if name in VALUES:
        return VALUES[name]
    return {str: "text", int: 1, float: 0.5, bool: True, object: {}}.get(annotation)


def annotations_of(kind: Any) -> dict[str, Any]:
    return typing_extensions.get_type_hints(kind, include_extras=True)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """The packages' annotations are strings, in which Python does not see `Required` by itself."""
    required = (typing.Required, typing_extensions.Required)
    return name in kind.__required_keys__ or typing.get_origin(hint) in required


def _is_typed_dict(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, dict) and hasattr(annotation, "__required_keys__")


def _bare(annotation: Any) -> Any:
    """Without Required, Annotated and names of types."""
    while True:
        if isinstance(annotation, typing_extensions.TypeAliasType):
            annotation = annotation.__value__
        elif typing.get_origin(annotation) in (
            typing.Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired,
        ) or hasattr(annotation, "__metadata__"):  # fmt: skip
            annotation = typing.get_args(annotation)[0]
        else:
            return annotation


# ---- what becomes of them -------------------------------------------------------------------------------------------


class Wire(NamedTuple):
    """base: the smallest request. before: what the conversation holds before a form of it: a call to answer. beside:
    field → others that it needs. refused: beginnings of paths → why the server cannot take them."""

    title: str
    request: Any
    parse: Callable[..., Inbound]
    base: Mapping[str, Any]
    conversation: str
    before: list[Any]
    beside: Mapping[str, Mapping[str, Any]]
    refused: Mapping[str, str]


class Outcome(NamedTuple):
    """status: of a form. note: the server's own words."""

    path: str
    status: Literal["taken", "no effect", "left out", "refused"]
    note: str = ""


HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
CALLED = [HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "f", "input": {}}]}]
MESSAGES = {
    "messages.user.content.thinking": "a model writes it, not a user",
    "messages.user.content.redacted_thinking": "a model writes it, not a user",
    "messages.user.content.tool_use": "a model writes it, not a user",
    "messages.user.content.compaction": "a model writes it, not a user",
    "messages.assistant.content.image": "models write text",
    "messages.assistant.content.document": "models write text",
    "messages.assistant.content.tool_result": "it stands in a user's message",
    "inference_geo": "where the server stands is not up to the request",
    "thread": "conversations are sent whole; clients act on the error's code",
}
WIRES = (
    Wire(
        "Chat Completions",
        completion_create_params.CompletionCreateParamsStreaming,
        openai_chat.parse,
        {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "f"}}]},
        "messages",
        [{"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "f"}}]}],
        {
            "functions": {"tools": None},
            "function_call": {"tools": None, "functions": [{"name": "f"}]},
            "stream_options": {"stream": True},
            "top_logprobs": {"logprobs": True},
        },
        {
            "audio": "answers are text",
            "modalities=audio": "answers are text",
            "moderation": "nothing is moderated",
            "messages.assistant.audio": "spoken answers are not kept; send the transcript",
            "messages.user.content.file.file": "the form has neither data nor an id",
            "response_format.json_schema.json_schema": "the form has no schema",
            "tool_choice.allowed_tools.allowed_tools": "the form names no tool",
        },
    ),
    Wire(
        "Responses",
        response_create_params.ResponseCreateParamsStreaming,
        openai_responses.parse,
        {"input": "Hello", "tools": [{"type": "function", "name": "f"}]},
        "input",
        [{"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}],
        {
            "tool_choice": {"tools": [{"type": "function", "name": "f"}, {"type": "shell"}, {"type": "apply_patch"}]},
            "top_logprobs": {"include": ["message.output_text.logprobs"]},
        },
        {
            "input.id": "the form's item is not stored",
            "input.compaction": "the form's item was not sealed by this server",
            "moderation": "nothing is moderated",
            "prompt": "there are no stored prompts",
            "tool_choice": "it demands a tool that this server does not run",
        },
    ),
    Wire(
        "Anthropic Messages",
        message_create_params.MessageCreateParamsStreaming,
        anthropic_messages.parse,
        {"messages": [HELLO], "max_tokens": 9, "tools": [{"name": "f", "input_schema": {}}]},
        "messages",
        CALLED,
        {},
        MESSAGES,
    ),
    Wire(
        "Anthropic Messages, beta",
        beta_message_create_params.MessageCreateParamsStreaming,
        anthropic_messages.parse,
        {"messages": [HELLO], "max_tokens": 9, "tools": [{"name": "f", "input_schema": {}}]},
        "messages",
        CALLED,
        {},
        MESSAGES,
    ),
)


@cache
def outcomes(title: str) -> tuple[Outcome, ...]:
    """What becomes of each form on a wire, each once; "taken" wins where several forms have one path."""
    wire = next(wire for wire in WIRES if wire.title == title)
    found: dict[str, Outcome] = {}
    for name, hint in annotations_of(wire.request).items():
        for form in forms(hint, name, (), name):
            outcome = _outcome(wire, name, form)
            if outcome.path not in found or outcome.status == "taken":
                found[outcome.path] = outcome
    return tuple(found.values())


def _outcome(wire: Wire, name: str, form: Form) -> Outcome:
    try:
        read, warnings = _read(wire, name, form.value)
    except RequestError as error:
        return Outcome(form.path, "refused", _plain(error.message))
    if warnings:
        return Outcome(form.path, "left out", _plain(" ".join(warnings)))
    try:
        without = None if form.without is None else _read(wire, name, form.without)[0]
    except RequestError:
        without = None
    return Outcome(form.path, "no effect" if read == without else "taken")


def _read(wire: Wire, name: str, value: Any) -> tuple[Any, list[str]]:
    """What a request with this field comes to, as plain data, and the warnings about it."""
    if name == wire.conversation and isinstance(value, list):
        value = [*wire.before, *value]
    body = json.dumps({**wire.base, **wire.beside.get(name, {}), name: value}).encode()
    counter = itertools.count()
    with noting(Notes()) as notes:
        inbound = wire.parse(body, new_id=lambda prefix: f"{prefix}{next(counter)}", media=KINDS)
    read: dict[str, Any] = msgspec.to_builtins(inbound, enc_hook=lambda value: value.model_dump(mode="json"))
    flags = read["extra"].get("flags", read["extra"])
    for repeated in ("echo", "items"):
        flags.pop(repeated, None)
    return read, notes.warnings


def _plain(sentence: str) -> str:
    return re.sub(r"\.\d+", "", sentence)


def rows(title: str) -> list[str]:
    """The table of a wire: forms of which more is to be said than of what holds them. Fields that change nothing have
    one row, wherever they stand."""
    fates: dict[str, tuple[str, str]] = {}
    lines: dict[str, None] = {}
    for path, status, note in outcomes(title):
        above = path
        while above and (above == path or above not in fates):
            above = above.rpartition("=" if "=" in above else ".")[0]
        fates[path] = (status, note)
        if status == "no effect":
            if "=" not in path and fates.get(above, ("taken", ""))[0] == "taken":
                lines[f"| `{_field(path)}` | no effect | |"] = None
        elif fates[path] != fates.get(above, ("taken", "")):
            lines[f"| `{path}` | {status} | {note} |".replace("  |", " |")] = None
    return [*lines]


def _field(path: str) -> str:
    *before, last = path.split(".")
    if last in ("ephemeral", "direct", "program") or last.endswith("location") or last.startswith("code_execution"):
        last = f"{before.pop()}.{last}"  # the kind of an object, which its field names
    return f"….{last}" if before else last


HEAD = """# How each form of a request is treated

Generated by `python -m tests.adapters.field_walk > docs/request-forms.md` from the types of the `openai` and
`anthropic` packages; a test checks it against the installed versions. A form is a field, a kind of item, part or tool,
or a value. A form that is not listed is treated like the one that contains it, and is **taken** if none of those is
listed either.

- **taken**: the server reads the form as its protocol says.
- **no effect**: the form asks for what the server does anyway, or for something that has no effect on an answer.
- **left out**: the request is answered without the form, and the answer's `X-Warning` header says so.
- **refused**: the answer is a 400 that names the form, since an answer without it would be a different one.
"""


def document() -> str:
    tables = ["\n".join([f"\n## {wire.title}\n", "| form | | the server's words |", "|---|---|---|", *rows(wire.title)])
              for wire in WIRES]  # fmt: skip
    return HEAD + "\n".join(tables) + "\n"


if __name__ == "__main__":
    print(document(), end="")
