"""A request's options → GenerationOptions, on every wire.

The sampling parameters come from their table (events.sampling), which says what each wire calls them; the other options
have OpenAI's names. A value of the wrong type or out of range is a RequestError that names the key; null means absent,
as OpenAI's clients send it; keys that no table knows are handed back untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.body import wrong
from adapters.response_shape import guided, response_format, structured_outputs
from adapters.tool_choice import tool_choice
from adapters.values import (
    Reader,
    boolean,
    integer,
    mapping,
    number,
    one_of,
    optional,
    string,
    strings,
    token_ids,
    token_numbers,
)
from events.options import GenerationOptions, OptionError, SamplingParams
from events.sampling import PARAMETERS, TYPES, WIRES, Wire, names_on

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_ANSWERS = 128
RESERVED_TEMPLATE_NAMES = frozenset(
    {"chat_template", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"}
    | {"return_dict", "return_tensors", "tokenizer_kwargs", "sanitize_control_tokens", "raise_exception"}
    | {"bos_token", "eos_token", "pad_token", "unk_token"}
)


def top_k(path: str, value: object) -> int:
    """-1 is vLLM's spelling of "off", which is 0 here."""
    count = integer(path, value)
    return 0 if count == -1 else count


def template_kwargs(path: str, value: object) -> dict[str, object]:
    """Extra variables for the chat template. What the renderer sets itself, the template above all, is refused."""
    extra = mapping(path, value)
    for name in extra:
        if name in RESERVED_TEMPLATE_NAMES or not name.isidentifier() or name.startswith("_"):
            raise wrong(path, "must not set what the server itself passes to the template")
    return extra


def give_way(path: str, value: object) -> int:
    """vLLM's `priority`, where less goes first: nobody can go before the others."""
    count = integer(path, value)
    if not 0 <= count < 2**31:
        raise wrong(path, "must be at least 0: a request can give way to others, not go before them")
    return count


def last_tokens(path: str, value: object) -> int:
    count = integer(path, value)
    if count < 1 and count != -1:
        raise wrong(path, "must be at least 1, or -1 for as many as fit")
    return count


def salt(path: str, value: object) -> str:
    if not (text := string(path, value)):
        raise wrong(path, "must not be empty")
    return text


def shows_special(path: str, value: object) -> bool:
    return not boolean(path, value)


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
"""Parameters that are read in a way of their own."""


def _parameters_of(wire: Wire) -> dict[str, tuple[str, Reader]]:
    """Key on the wire → (attribute, reader), but for `logprobs`, which the wires spell in three ways."""
    return {
        key: (name, _BY_NAME.get(name) or _BY_TYPE[TYPES[name]])
        for name in PARAMETERS
        if name != "logprobs"
        for key in names_on(wire, name)
    }


SAMPLING: Mapping[Wire, Mapping[str, tuple[str, Reader]]] = {wire: _parameters_of(wire) for wire in WIRES}
"""Each wire's keys for sampling parameters. Later entries win where two keys fill one attribute."""
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
    "truncate_prompt_tokens": ("truncate_prompt", last_tokens),
    "truncation_side": ("truncation_side", one_of("left", "right")),
    "truncate_history": ("truncate_history", boolean),
    "skip_special_tokens": ("special_tokens", shows_special),
    "cache_salt": ("cache_salt", salt),
    "priority": ("priority", give_way),
    "delivery": ("delivery", one_of("immediate", "adaptive")),
    "boundaries": ("boundaries", one_of("lenient", "strict")),
    "token_details": ("token_details", boolean),
    "return_token_ids": ("token_details", boolean),
    "prompt_progress": ("prompt_progress", boolean),
    "return_progress": ("prompt_progress", boolean),
    "constrain_tools": ("constrain_tools", boolean),
    "store": ("store", boolean),
    "user": ("user", string),
    "metadata": ("metadata", mapping),
}
LOGPROBS = ("logprobs", "top_logprobs")


def known(wire: Wire) -> frozenset[str]:
    """The keys that `read_options` reads on this wire."""
    return frozenset(SAMPLING[wire]) | frozenset(OPTIONS) | frozenset(LOGPROBS)


KNOWN: Mapping[Wire, frozenset[str]] = {wire: known(wire) for wire in WIRES}


FITTED = ("chat", "messages", "responses")
"""Wires whose clients send a `max_tokens` that suits large models; it means at most what the context leaves."""


def read_options(
    source: Mapping[str, object], *, wire: Wire = "agui", at: str = ""
) -> tuple[GenerationOptions, dict[str, object]]:
    """The options in `source`, and the keys of it that are none.

    wire: whose names they have; "agui" has each parameter's own. at: prefixes names in errors ("forwardedProps").
    Raises RequestError("invalid_request") naming the key.
    """
    prefix = f"{at}." if at else ""
    given = {key: value for key, value in source.items() if key in KNOWN[wire] and value is not None}
    sampling = _read(SAMPLING[wire], given, prefix)
    fields = _read(OPTIONS, given, prefix)
    _read_logprobs(given, prefix, sampling, fields)
    _read_thinking(fields)
    params = SamplingParams(**sampling)
    _check(params, wire, given, prefix)
    if not 1 <= fields.get("n", 1) <= MAX_ANSWERS:
        raise wrong(f"{prefix}n", f"must be from 1 to {MAX_ANSWERS}")
    if fields.get("continue_final_message") and fields.get("generation_prompt"):
        raise wrong(f"{prefix}add_generation_prompt", "must be false where continue_final_message is true")
    rest = {key: value for key, value in source.items() if key not in KNOWN[wire]}
    fits = wire in FITTED
    return GenerationOptions(sampling=params, stated=frozenset(sampling), fit_answer=fits, **fields), rest


def _read(table: Mapping[str, tuple[str, Reader]], given: dict[str, object], prefix: str) -> dict[str, Any]:
    return {field: read(prefix + key, given[key]) for key, (field, read) in table.items() if key in given}


def _read_logprobs(given: dict[str, object], prefix: str, sampling: dict[str, Any], fields: dict[str, object]) -> None:
    """Chat: `logprobs: true` with `top_logprobs: n`. Text completions: `logprobs: n`."""
    wanted = given.get("logprobs", False)
    alternatives = optional(integer, f"{prefix}top_logprobs", given.get("top_logprobs"))
    if isinstance(wanted, bool):
        if alternatives and not wanted:
            raise wrong(f"{prefix}top_logprobs", "needs logprobs to be true")
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


def _check(params: SamplingParams, wire: Wire, given: dict[str, object], prefix: str) -> None:
    try:
        params.validate()
    except OptionError as error:
        keys = reversed(LOGPROBS) if error.param == "logprobs" else names_on(wire, error.param)
        name = next((key for key in keys if key in given), error.param)
        raise wrong(prefix + name, error.message.removesuffix(".")) from None
