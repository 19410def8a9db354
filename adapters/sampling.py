"""OpenAI-named options → GenerationOptions, for every wire that speaks those names.

One table says which key fills which field and how its value is read. A value of the wrong type or out of range is a
RequestError that names the key; null means absent, as OpenAI's clients send it; keys that the table does not know are
handed back untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from adapters.errors import RequestError
from events.options import GenerationOptions, OptionError, ResponseFormat, SamplingParams, ToolChoice

Reader = Callable[[str, Any], Any]

MAX_NAMES = 1024
MAX_STRING = 64 * 1024
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
RESERVED_TEMPLATE_NAMES = frozenset(
    {"chat_template", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"}
    | {"return_dict", "return_tensors", "tokenizer_kwargs", "sanitize_control_tokens", "raise_exception"}
    | {"bos_token", "eos_token", "pad_token", "unk_token"}
)


def wrong(path: str, message: str) -> RequestError:
    return RequestError("invalid_request", f"{path} {message}", param=path)


def boolean(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(path, "must be true or false.")
    return value


def integer(path: str, value: Any) -> int:
    """A whole number; 3.0 is one, as JSON has a single number type."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(path, "must be a whole number.")
    if abs(value) >= 2**64:
        raise wrong(path, "must fit 64 bits.")
    return value


def number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, "must be a number.")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise wrong(path, "is too large.")
    return float(value)


def string(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(path, "must be a string.")
    if len(value) > MAX_STRING:
        raise wrong(path, f"must be at most {MAX_STRING} characters long.")
    return value


def mapping(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(path, "must be an object.")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} keys.")
    return value


def sequence(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(path, "must be an array.")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} items.")
    return value


def one_of(*allowed: str) -> Reader:
    def read(path: str, value: Any) -> str:
        if value not in allowed or not isinstance(value, str):
            raise wrong(path, f"must be one of {', '.join(allowed)}.")
        return value

    return read


def stop_strings(path: str, value: Any) -> tuple[str, ...]:
    """A string or an array of strings; empty strings are dropped, since they would stop before the first token."""
    values = [value] if isinstance(value, str) else sequence(path, value)
    return tuple(text for i, item in enumerate(values) if (text := string(f"{path}.{i}", item)))


def token_ids(path: str, value: Any) -> tuple[int, ...]:
    ids = tuple(integer(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value)))
    if any(not 0 <= token < 2**31 for token in ids):
        raise wrong(path, "must hold token ids.")
    return ids


def top_k(path: str, value: Any) -> int:
    """-1 is vLLM's spelling of "off", which is 0 here."""
    count = integer(path, value)
    return 0 if count == -1 else count


def logit_bias(path: str, value: Any) -> dict[int, float]:
    bias = {}
    for key, amount in mapping(path, value).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise wrong(path, "must map token ids to numbers from -100 to 100.")
        bias[int(key)] = number(f"{path}.{key}", amount)
    return bias


def tool_choice(path: str, value: Any) -> ToolChoice:
    """ "auto", "none", "required", a named function (Chat's and Responses' form) or allowed_tools (both forms)."""
    if isinstance(value, str):
        return ToolChoice(mode=one_of("auto", "none", "required")(path, value))
    choice = mapping(path, value)
    match choice.get("type"):
        case "function":
            return ToolChoice(mode="named", names=(_function_name(path, choice),))
        case "allowed_tools":
            return _allowed_tools(path, choice)
    raise wrong(path, 'must be "auto", "none", "required", a function or allowed_tools.')


def _function_name(path: str, entry: Any) -> str:
    entry = mapping(path, entry)
    inner = entry.get("function")
    name = inner.get("name") if isinstance(inner, dict) else entry.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(path, "must name a function.")
    return name


def _allowed_tools(path: str, choice: dict[str, Any]) -> ToolChoice:
    inner = choice.get("allowed_tools", choice)
    inner = mapping(f"{path}.allowed_tools", inner)
    mode: Literal["auto", "required"] = one_of("auto", "required")(f"{path}.mode", inner.get("mode", "auto"))
    tools = sequence(f"{path}.tools", inner.get("tools"))
    names = tuple(_function_name(f"{path}.tools.{i}", tool) for i, tool in enumerate(tools))
    if not names:
        raise wrong(f"{path}.tools", "must name at least one tool.")
    return ToolChoice(mode=mode, names=names)


def response_format(path: str, value: Any) -> ResponseFormat | None:
    """Chat's `response_format` and Responses' `text.format`; {"type": "text"} is no constraint."""
    shape = mapping(path, value)
    match shape.get("type"):
        case "text":
            return None
        case "json_object":
            return ResponseFormat(kind="json_object")
        case "json_schema":
            return _json_schema(path, shape)
        case "structural_tag":
            return ResponseFormat(kind="structural_tag", value=shape)
    raise wrong(f"{path}.type", "must be one of text, json_object, json_schema, structural_tag.")


def _json_schema(path: str, shape: dict[str, Any]) -> ResponseFormat:
    nested = shape.get("json_schema")
    where = f"{path}.json_schema" if nested is not None else path
    inner = mapping(where, nested) if nested is not None else shape
    schema = inner.get("schema", {})
    if not isinstance(schema, dict | bool):
        raise wrong(f"{where}.schema", "must be a JSON schema.")
    name = _optional(string, f"{where}.name", inner.get("name"))
    strict = _optional(boolean, f"{where}.strict", inner.get("strict"))
    return ResponseFormat(kind="json_schema", value=schema, name=name, strict=bool(strict))


def structured_outputs(path: str, value: Any) -> ResponseFormat | None:
    """vLLM's `structured_outputs`: exactly one of json, json_object, regex, choice, grammar, structural_tag."""
    given = {key: item for key, item in mapping(path, value).items() if item is not None and key in _STRUCTURED}
    if len(given) != 1:
        raise wrong(path, f"must have exactly one of {', '.join(_STRUCTURED)}.")
    key, item = next(iter(given.items()))
    return _STRUCTURED[key](f"{path}.{key}", item)


def _choices(path: str, value: Any) -> ResponseFormat:
    options = [string(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value))]
    if not options:
        raise wrong(path, "must offer at least one choice.")
    return ResponseFormat(kind="choice", value=options)


def _schema_value(path: str, value: Any) -> ResponseFormat:
    return ResponseFormat(kind="json_schema", value=mapping(path, value))


_STRUCTURED: dict[str, Callable[[str, Any], ResponseFormat | None]] = {
    "json": _schema_value,
    "json_object": lambda path, value: ResponseFormat(kind="json_object") if boolean(path, value) else None,
    "regex": lambda path, value: ResponseFormat(kind="regex", value=string(path, value)),
    "choice": _choices,
    "grammar": lambda path, value: ResponseFormat(kind="grammar", value=string(path, value)),
    "structural_tag": lambda path, value: ResponseFormat(kind="structural_tag", value=mapping(path, value)),
}


def template_kwargs(path: str, value: Any) -> dict[str, Any]:
    """Extra variables for the chat template. What the renderer sets itself, the template above all, is refused."""
    extra = mapping(path, value)
    for name in extra:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier() or name.startswith("_"):
            raise wrong(path, "must not set what the server itself passes to the template.")
    return extra


def _optional(read: Reader, path: str, value: Any) -> Any:
    return None if value is None else read(path, value)


# key on the wire → (field, reader). Later entries win where two keys fill one field.
SAMPLING: dict[str, tuple[str, Reader]] = {
    "temperature": ("temperature", number),
    "top_p": ("top_p", number),
    "top_k": ("top_k", top_k),
    "min_p": ("min_p", number),
    "typical_p": ("typical_p", number),
    "repetition_penalty": ("repetition_penalty", number),
    "presence_penalty": ("presence_penalty", number),
    "frequency_penalty": ("frequency_penalty", number),
    "logit_bias": ("logit_bias", logit_bias),
    "seed": ("seed", integer),
    "stop": ("stop", stop_strings),
    "stop_token_ids": ("stop_token_ids", token_ids),
    "max_tokens": ("max_tokens", integer),
    "max_completion_tokens": ("max_tokens", integer),
    "min_tokens": ("min_tokens", integer),
    "ignore_eos": ("ignore_eos", boolean),
    "prompt_logprobs": ("prompt_logprobs", integer),
}
OPTIONS: dict[str, tuple[str, Reader]] = {
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
    "delivery": ("delivery", one_of("immediate", "adaptive")),
    "boundaries": ("boundaries", one_of("lenient", "strict")),
    "token_details": ("token_details", boolean),
    "return_token_ids": ("token_details", boolean),
    "constrain_tools": ("constrain_tools", boolean),
    "store": ("store", boolean),
    "user": ("user", string),
    "metadata": ("metadata", mapping),
}
KNOWN = frozenset(SAMPLING) | frozenset(OPTIONS) | {"logprobs", "top_logprobs"}
MAX_ANSWERS = 128


def read_options(source: Mapping[str, Any], *, at: str = "") -> tuple[GenerationOptions, dict[str, Any]]:
    """The options in `source`, and the keys of it that are none. `at` prefixes names in errors ("forwardedProps").

    Raises RequestError("invalid_request") naming the key.
    """
    prefix = f"{at}." if at else ""
    given = {key: value for key, value in source.items() if key in KNOWN and value is not None}
    sampling = _read(SAMPLING, given, prefix)
    fields = _read(OPTIONS, given, prefix)
    _read_logprobs(given, prefix, sampling, fields)
    _read_thinking(fields)
    params = SamplingParams(**sampling)
    _check(params, fields, given, prefix)
    rest = {key: value for key, value in source.items() if key not in KNOWN}
    return GenerationOptions(sampling=params, **fields), rest


def _read(table: dict[str, tuple[str, Reader]], given: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {field: read(prefix + key, given[key]) for key, (field, read) in table.items() if key in given}


def _read_logprobs(given: dict[str, Any], prefix: str, sampling: dict[str, Any], fields: dict[str, Any]) -> None:
    """Chat: `logprobs: true` with `top_logprobs: n`. Text completions: `logprobs: n`."""
    wanted = given.get("logprobs", False)
    alternatives = _optional(integer, f"{prefix}top_logprobs", given.get("top_logprobs"))
    if isinstance(wanted, bool):
        if alternatives and not wanted:
            raise wrong(f"{prefix}top_logprobs", "needs logprobs to be true.")
        count = (alternatives or 0) if wanted else None
    else:
        count = integer(f"{prefix}logprobs", wanted)
    if count is not None:
        sampling["logprobs"] = count
        fields["token_details"] = True


def _read_thinking(fields: dict[str, Any]) -> None:
    """`enable_thinking` is also accepted inside chat_template_kwargs, where vLLM's users put it; an effort of "none"
    switches thinking off unless the switch itself was given."""
    extra = dict(fields.get("template_kwargs", {}))
    for name in ("enable_thinking", "thinking"):
        if isinstance(extra.get(name), bool):
            fields.setdefault("thinking", extra.pop(name))
    if "template_kwargs" in fields:
        fields["template_kwargs"] = extra
    if fields.get("reasoning_effort") == "none":
        fields.setdefault("thinking", False)


def _check(params: SamplingParams, fields: dict[str, Any], given: dict[str, Any], prefix: str) -> None:
    try:
        params.validate()
    except OptionError as error:
        name = next((key for key, (field, _) in SAMPLING.items() if field == error.param and key in given), error.param)
        name = "top_logprobs" if name == "logprobs" and "top_logprobs" in given else name
        raise wrong(prefix + name, error.message) from None
    if not 1 <= fields.get("n", 1) <= MAX_ANSWERS:
        raise wrong(f"{prefix}n", f"must be from 1 to {MAX_ANSWERS}.")


def check_tool_choice(choice: ToolChoice, declared: Collection[str], *, at: str = "tool_choice") -> None:
    """A choice that needs a tool must find it among `declared`. Raises RequestError("invalid_request")."""
    if choice.mode in ("required", "named") and not declared:
        raise wrong(at, "needs tools, and the request declares none.")
    if any(name not in declared for name in choice.names):
        raise wrong(at, "names a tool that the request does not declare.")
