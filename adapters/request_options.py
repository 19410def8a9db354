"""Read a request's options into GenerationOptions, on every wire: sampling, `tool_choice`, and the response format.

The response format is read in the form of OpenAI (`response_format`, `text.format`) and of vLLM (`structured_outputs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from adapters.body import (
    Reader,
    boolean,
    integer,
    mapping,
    notes_of_request,
    number,
    one_of,
    optional,
    sequence,
    string,
    strings,
    token_ids,
    token_numbers,
    wrong,
)
from events.grammar.lint import MAX_NODES, SCHEMA_MAPS, SchemaRefused, subschemas, walk
from events.options import GenerationOptions, OptionError, ResponseFormat, SamplingParams, ToolChoice
from events.sampling import PARAMETERS, TYPES, WIRES, Wire, names_on

JSON_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
"""JSON Schema 2020-12, validation, section 6.1.1."""


def response_format(path: str, value: object) -> ResponseFormat | None:
    """Read Chat's `response_format` or Responses' `text.format`; None for {"type": "text"}, which is no constraint."""
    shape = mapping(path, value)
    match shape.get("type"):
        case "text":
            return None
        case "json_object":
            # llama.cpp's clients combine a schema with this type; it is honoured.
            if shape.get("schema") is not None:
                return ResponseFormat(kind="json_schema", value=json_schema(f"{path}.schema", shape["schema"]))
            if shape.get("json_schema") is not None:
                raise wrong(f"{path}.json_schema", 'needs the type "json_schema"')
            return ResponseFormat(kind="json_object")
        case "json_schema":
            nested = shape.get("json_schema")
            where = f"{path}.json_schema" if nested is not None else path
            inner = mapping(where, nested) if nested is not None else shape
            if inner.get("schema") is None:
                raise wrong(f"{where}.schema", "is required")
            name = optional(string, f"{where}.name", inner.get("name"))
            strict = optional(boolean, f"{where}.strict", inner.get("strict"))
            schema = json_schema(f"{where}.schema", inner["schema"])
            return ResponseFormat(kind="json_schema", value=schema, name=name, strict=bool(strict))
        case "structural_tag":
            return ResponseFormat(kind="structural_tag", value=shape)
    raise wrong(f"{path}.type", "must be one of text, json_object, json_schema, structural_tag")


def json_schema(path: str, value: object) -> dict[str, object] | bool:
    """Check that a JSON schema's types exist and that its parts are schemas. Its size and depth are checked when its
    grammar is compiled."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise wrong(path, "must be a JSON schema")
    with contextlib.suppress(SchemaRefused):
        for pointer, node in islice(walk(value), MAX_NODES):
            at = path + pointer.replace("/", ".")
            kinds = node.get("type", [])
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                if not isinstance(kind, str) or kind not in JSON_TYPES:
                    raise wrong(f"{at}.type", f"must be one of {', '.join(sorted(JSON_TYPES))}")
            for keyword in SCHEMA_MAPS:
                if not isinstance(node.get(keyword, {}), dict):
                    raise wrong(f"{at}.{keyword}", "must be an object of JSON schemas")
            for below, part in subschemas(node):
                if not isinstance(part, dict | bool):
                    raise wrong(at + below.replace("/", "."), "must be a JSON schema")
    return value


def structured_outputs(path: str, value: object) -> ResponseFormat | None:
    """Read vLLM's `structured_outputs`: exactly one of json, json_object, regex, choice, grammar, structural_tag."""
    entries = {key: item for key, item in mapping(path, value).items() if item is not None and key in _STRUCTURED}
    if len(entries) != 1:
        raise wrong(path, f"must have exactly one of {', '.join(_STRUCTURED)}")
    key, item = next(iter(entries.items()))
    return _STRUCTURED[key](f"{path}.{key}", item)


def guided(key: str) -> Callable[[str, object], ResponseFormat | None]:
    """Return the reader of vLLM's older `guided_*` field for an entry of `structured_outputs`. A schema may be text."""

    def read(path: str, value: object) -> ResponseFormat | None:
        if key == "json" and isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                raise wrong(path, "must be a JSON schema") from None
        return _STRUCTURED[key](path, value)

    return read


def top_level_format(values: Mapping[str, object]) -> ResponseFormat | None:
    """Read llama.cpp's `json_schema` and `grammar` (GBNF) or SGLang's `regex` and `ebnf`. An empty text means none."""
    if (schema := values.get("json_schema")) is not None:
        return ResponseFormat(kind="json_schema", value=json_schema("json_schema", schema))
    for name, key in (("regex", "regex"), ("ebnf", "grammar"), ("grammar", "grammar")):
        if values.get(name):
            return _STRUCTURED[key](name, values[name])
    return None


def _choices(path: str, value: object) -> ResponseFormat:
    options = [string(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value))]
    if not options:
        raise wrong(path, "must offer at least one choice")
    return ResponseFormat(kind="choice", value=options)


_STRUCTURED: dict[str, Callable[[str, object], ResponseFormat | None]] = {
    "json": lambda path, value: ResponseFormat(kind="json_schema", value=json_schema(path, mapping(path, value))),
    "json_object": lambda path, value: ResponseFormat(kind="json_object") if boolean(path, value) else None,
    "regex": lambda path, value: ResponseFormat(kind="regex", value=string(path, value)),
    "choice": _choices,
    "grammar": lambda path, value: ResponseFormat(kind="grammar", value=string(path, value)),
    "structural_tag": lambda path, value: ResponseFormat(kind="structural_tag", value=mapping(path, value)),
}


CLIENT_RUN = ("shell", "local_shell", "apply_patch")
"""Tool types that represent a single function, which a Responses client runs itself."""


def tool_choice(path: str, value: object) -> ToolChoice:
    """Read "auto", "none", "required", a named function or custom tool, or allowed_tools, in Chat's or Responses'
    form."""
    if isinstance(value, str):
        return _by_mode(one_of("auto", "none", "required")(path, value))
    choice = mapping(path, value)
    match choice.get("type"):
        case "function" | "custom" | "shell" | "local_shell" | "apply_patch":
            return ToolChoice(mode="named", names=(_function_name(path, choice),))
        case "allowed_tools":
            inner = mapping(f"{path}.allowed_tools", choice.get("allowed_tools", choice))
            mode = one_of("auto", "required")(f"{path}.mode", inner.get("mode", "auto"))
            tools = sequence(f"{path}.tools", inner.get("tools"))
            names = tuple(
                _function_name(f"{path}.tools.{i}", tool)
                for i, tool in enumerate(tools)
                if not isinstance(tool, dict) or tool.get("type", "function") in ("function", "custom", *CLIENT_RUN)
            )
            if len(names) < len(tools):
                notes_of_request().warn(f"{path}.tools names tools that this server does not run; they are left out.")
            if not names:
                raise wrong(f"{path}.tools", "must name at least one tool")
            return _by_mode(mode, names)
    raise wrong(
        path, 'must be "auto", "none", "required", a function or custom tool that is declared, or allowed_tools'
    )


def _by_mode(mode: str, names: tuple[str, ...] = ()) -> ToolChoice:
    modes: dict[str, Literal["auto", "none", "required"]] = {"none": "none", "required": "required"}
    return ToolChoice(mode=modes.get(mode, "auto"), names=names)


def _function_name(path: str, entry: object) -> str:
    named = mapping(path, entry)
    inner = named.get("function", named.get("custom"))
    name = inner.get("name") if isinstance(inner, dict) else named.get("name")
    if named.get("type") in CLIENT_RUN:
        return str(named["type"])
    if isinstance(named.get("namespace"), str) and isinstance(name, str):
        return f"{named['namespace']}__{name}"
    if not isinstance(name, str) or not name:
        raise wrong(path, "must name a function")
    return name


def check_tool_choice(choice: ToolChoice, declared: Collection[str], *, at: str = "tool_choice") -> None:
    """Raise RequestError("invalid_request") if the choice needs a tool that is not among `declared`."""
    if choice.mode in ("required", "named") and not declared:
        raise wrong(at, "needs tools, and the request declares none")
    if any(name not in declared for name in choice.names):
        raise wrong(at, "names a tool that the request does not declare")


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_ANSWERS = 128
RESERVED_TEMPLATE_NAMES = frozenset(
    {"chat_template", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"}
    | {"return_dict", "return_tensors", "tokenizer_kwargs", "sanitize_control_tokens", "raise_exception"}
    | {"bos_token", "eos_token", "pad_token", "unk_token"}
)


def top_k(path: str, value: object) -> int:
    """Read `top_k`. vLLM's -1 means "off", which is 0 here."""
    count = integer(path, value)
    return 0 if count == -1 else count


def template_kwargs(path: str, value: object) -> dict[str, object]:
    """Read extra variables for the chat template. Names that the renderer sets itself are refused."""
    extra = mapping(path, value)
    for name in extra:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier() or name.startswith("_"):
            raise wrong(path, "must not set what the server itself passes to the template")
    return extra


def priority_reader(path: str, value: object) -> int:
    """Read vLLM's `priority`, where lower values run first. Negative values are refused, so that no client can
    overtake the others."""
    count = integer(path, value)
    if not 0 <= count < 2**31:
        raise wrong(path, "must be at least 0: a request can lower its own priority, not raise it")
    return count


def truncation_length(path: str, value: object) -> int:
    count = integer(path, value)
    if count < 1 and count != -1:
        raise wrong(path, "must be at least 1, or -1 for as many as fit")
    return count


def salt(path: str, value: object) -> str:
    if not (text := string(path, value)):
        raise wrong(path, "must not be empty")
    return text


def special_tokens_shown(path: str, value: object) -> bool:
    return not boolean(path, value)


def predicted_text(path: str, value: object) -> str:
    """Read OpenAI's `prediction`: {"type": "content", "content": a text or a list of text parts}."""
    content = value.get("content") if isinstance(value, dict) and value.get("type") == "content" else None
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str):
        raise wrong(path, 'must be {"type": "content", "content": text}, where text may be a list of text parts')
    return content


_BY_TYPE: Mapping[object, Reader] = {
    float: number,
    float | None: number,
    int: integer,
    int | None: integer,
    bool: boolean,
    bool | None: boolean,
    tuple[str, ...]: strings,
    tuple[int, ...]: token_ids,
    dict[int, float]: token_numbers,
}
_BY_NAME: Mapping[str, Reader] = {"top_k": top_k}
"""Parameters with a reader of their own."""


SAMPLING: Mapping[Wire, Mapping[str, tuple[str, Reader]]] = {
    wire: {
        key: (name, _BY_NAME.get(name) or _BY_TYPE[TYPES[name]])
        for name in PARAMETERS
        if name != "logprobs"
        for key in names_on(wire, name)
    }
    for wire in WIRES
}
"""Each wire's keys for sampling parameters, with attribute and reader; except `logprobs`, which the wires spell in
three ways. If two keys set the same attribute, the later entry wins."""
OPTIONS: Mapping[str, tuple[str, Reader]] = {
    "model": ("model", string),
    "n": ("n", integer),
    "tool_choice": ("tool_choice", tool_choice),
    "parallel_tool_calls": ("parallel_tool_calls", boolean),
    "response_format": ("response_format", response_format),
    "structured_outputs": ("response_format", structured_outputs),
    "reasoning_effort": ("reasoning_effort", one_of(*EFFORTS)),
    "enable_thinking": ("thinking", boolean),
    "chat_template_kwargs": ("template_kwargs", template_kwargs),
    "continue_final_message": ("continue_final_message", boolean),
    "add_generation_prompt": ("generation_prompt", boolean),
    "guided_json": ("response_format", guided("json")),
    "guided_regex": ("response_format", guided("regex")),
    "guided_choice": ("response_format", guided("choice")),
    "guided_grammar": ("response_format", guided("grammar")),
    "truncate_prompt_tokens": ("truncate_prompt", truncation_length),
    "truncation_side": ("truncation_side", one_of("left", "right")),
    "truncate_history": ("truncate_history", boolean),
    "skip_special_tokens": ("special_tokens", special_tokens_shown),
    "cache_salt": ("cache_salt", salt),
    "priority": ("priority", priority_reader),
    "delivery": ("delivery", one_of("immediate", "adaptive")),
    "boundaries": ("boundaries", one_of("lenient", "strict")),
    "token_details": ("token_details", boolean),
    "return_token_ids": ("token_details", boolean),
    "prompt_progress": ("prompt_progress", boolean),
    "return_progress": ("prompt_progress", boolean),
    "constrain_tools": ("constrain_tools", boolean),
    "prediction": ("prediction", predicted_text),
    "store": ("store", boolean),
    "user": ("user", string),
    "metadata": ("metadata", mapping),
}
LOGPROBS = ("logprobs", "top_logprobs")


def known_keys(wire: Wire) -> frozenset[str]:
    """Return the keys that `read_options` reads on this wire."""
    return frozenset(SAMPLING[wire]) | frozenset(OPTIONS) | frozenset(LOGPROBS)


KNOWN: Mapping[Wire, frozenset[str]] = {wire: known_keys(wire) for wire in WIRES}


def read_options(
    source: Mapping[str, object], *, wire: Wire = "agui", at: str = ""
) -> tuple[GenerationOptions, dict[str, object]]:
    """Return the options in `source`, and its other entries.

    wire: whose names are used; "agui" uses each parameter's own. at: a prefix of names in errors ("forwardedProps").
    Raises RequestError("invalid_request"), which names the key.
    """
    prefix = f"{at}." if at else ""
    values = {key: value for key, value in source.items() if key in KNOWN[wire] and value is not None}
    sampling = _read(SAMPLING[wire], values, prefix)
    fields = _read(OPTIONS, values, prefix)
    # Chat: `logprobs: true` with `top_logprobs: n`.
    logprobs = values.get("logprobs", False)
    alternatives = optional(integer, f"{prefix}top_logprobs", values.get("top_logprobs"))
    if isinstance(logprobs, bool):
        if alternatives and not logprobs:
            raise wrong(f"{prefix}top_logprobs", "needs logprobs to be true")
        count = (alternatives or 0) if logprobs else None
    else:
        count = integer(f"{prefix}logprobs", logprobs)
    if count is not None:
        sampling["logprobs"] = count
        fields["token_details"] = True
    # `enable_thinking` is also accepted inside chat_template_kwargs, where vLLM's users put it; an effort of "none"
    # switches thinking off unless `enable_thinking` is set.
    extra = dict(fields.get("template_kwargs", {}))
    for name in ("enable_thinking", "thinking"):
        if isinstance(extra.get(name), bool):
            fields.setdefault("thinking", extra.pop(name))
    if "template_kwargs" in fields:
        fields["template_kwargs"] = extra
    if fields.get("reasoning_effort") == "none":
        fields.setdefault("thinking", False)
    params = SamplingParams(**sampling)
    try:
        params.validate()
    except OptionError as error:
        keys = reversed(LOGPROBS) if error.param == "logprobs" else names_on(wire, error.param)
        name = next((key for key in keys if key in values), error.param)
        raise wrong(prefix + name, error.message.removesuffix(".")) from None
    if not 1 <= fields.get("n", 1) <= MAX_ANSWERS:
        raise wrong(f"{prefix}n", f"must be from 1 to {MAX_ANSWERS}")
    if fields.get("continue_final_message") and fields.get("generation_prompt"):
        raise wrong(f"{prefix}add_generation_prompt", "must be false where continue_final_message is true")
    rest = {key: value for key, value in source.items() if key not in KNOWN[wire]}
    return GenerationOptions(sampling=params, stated=frozenset(sampling), **fields), rest


def _read(table: Mapping[str, tuple[str, Reader]], values: dict[str, object], prefix: str) -> dict[str, Any]:
    return {field: read(prefix + key, values[key]) for key, (field, read) in table.items() if key in values}
