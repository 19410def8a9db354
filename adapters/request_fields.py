"""Tables of request fields: which ones a wire honours, accepts or refuses, so that none is silently ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from adapters.body import known_only, notes_of_request
from adapters.errors import RequestError
from events.sampling import PARAMETERS, Wire, json_schema, names_on

Schema = Mapping[str, object]
ANY: Schema = {}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
STRING: Schema = {"type": "string"}
STRINGS: Schema = {"type": "array", "items": STRING}


class Field(NamedTuple):
    """One row of a table.

    neutral: values of a refused or ignored field that have no effect and pass without an error or a warning, as None
    always does. schema: the value's JSON schema, for API descriptions; the parsers do their own checks. code: the
    wire's code for the refusal, where its clients act on it. warns: the field is accepted without effect, and the
    answer has a warning.
    """

    status: Literal["honoured", "accepted", "refused"]
    note: str = ""
    neutral: tuple[object, ...] = ()
    schema: Schema = ANY
    code: str | None = None
    warns: bool = False


def honoured(note: str = "", schema: Schema = ANY) -> Field:
    return Field("honoured", note, schema=schema)


def accepted(note: str, schema: Schema = ANY) -> Field:
    return Field("accepted", note, schema=schema)


def ignored(note: str, *, neutral: tuple[object, ...] = (), schema: Schema = ANY) -> Field:
    """Return the row of a field that controls how other servers work, not what they answer. It is accepted, with a
    warning unless its value is neutral."""
    return Field("accepted", note, neutral, schema, warns=True)


def refused(note: str, *, neutral: tuple[object, ...] = (), schema: Schema = ANY, code: str | None = None) -> Field:
    return Field("refused", note, neutral, schema, code)


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def sampling_fields(wire: Wire) -> dict[str, Field]:
    """Return a row for each field of this wire that sets a sampling parameter."""
    return {
        key: honoured(parameter.note, json_schema(name))
        for name, parameter in PARAMETERS.items()
        for key in names_on(wire, name)
    }


def read_fields(values: Mapping[str, object], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the fields that are in the table; others are omitted with a warning. Raises RequestError
    ("invalid_request") with the name of a refused field and the reason."""
    known_values = known_only(values, fields)
    notes = notes_of_request()
    for name, value in known_values.items():
        field = fields[name]
        if field.warns and value is not None and value not in field.neutral:
            notes.warn(f"{name} changes nothing: {field.note}.")
        if field.status == "refused" and value is not None and value not in field.neutral:
            message = f"{name} is not supported: {field.note}."
            raise RequestError("invalid_request", message, param=name, code=field.code)

    return known_values


SCHEDULING: dict[str, Field] = {
    "cache_salt": honoured("cached prefixes are used only by requests with the same salt", STRING),
    "priority": honoured("scheduling priority: higher values run later; at least 0", INTEGER),
}
"""Fields that control where and when a request is computed, on every wire."""
OTHER_SERVERS: dict[str, Field] = {
    "add_special_tokens": refused("the chat template writes them", neutral=(False,)),
    "cache_prompt": ignored("prefixes are cached by their content"),
    "id_slot": ignored("the scheduler finds a place"),
    "n_keep": ignored("nothing is left out of a prompt"),
    "n_cache_reuse": ignored("prefixes are cached by their content"),
    "request_id": ignored("the server names its runs itself"),
    **SCHEDULING,
    "guided_decoding_backend": ignored("there is one grammar library"),
    "mm_processor_kwargs": ignored("the model's own processor is used"),
    "kv_transfer_params": ignored("caches are not handed from server to server"),
    "spaces_between_special_tokens": ignored("tokens are returned as the model wrote them"),
    "skip_special_tokens": honoured("false shows control tokens, and the text is not parsed", BOOLEAN),
    "truncate_prompt_tokens": honoured("keeps the prompt's last tokens; -1: as many as fit", INTEGER),
    "truncation_side": honoured("`right` keeps the prompt's first tokens", STRING),
    "prompt_logprobs": honoured("a row for each token of the prompt; not while streaming", INTEGER),
    "guided_json": honoured("as `structured_outputs.json`"),
    "guided_regex": honoured("as `structured_outputs.regex`", STRING),
    "guided_choice": honoured("as `structured_outputs.choice`", STRINGS),
    "guided_grammar": honoured("as `structured_outputs.grammar`", STRING),
    "regex": honoured("as `structured_outputs.regex`", STRING),
    "ebnf": honoured("as `structured_outputs.grammar`", STRING),
    "guided_whitespace_pattern": ignored("the white space of JSON cannot be chosen"),
    "vllm_xargs": ignored("there are no such extensions"),
    "media_io_kwargs": ignored("media is decoded in one way"),
    "return_tokens_as_token_ids": honoured("log probabilities name tokens as `token_id:5`", BOOLEAN),
    "return_tokens": ignored("`return_token_ids` reports them"),
    "logits_processors": refused("requests bring no code", neutral=([],)),
    "documents": refused("give them in a message", neutral=([],)),
    "grammar": honoured("as `structured_outputs.grammar`", STRING),
    "json_schema": honoured("as `structured_outputs.json`"),
    "n_probs": refused("use `logprobs`", neutral=(0,)),
    "post_sampling_probs": refused("log probabilities are those before the filters", neutral=(False,)),
    "min_keep": refused("filters keep one token", neutral=(0, 1)),
    "repeat_last_n": ignored("penalties count the whole text"),
    "samplers": ignored("the samplers have one order"),
    "mirostat_tau": ignored("there is no such sampler"),
    "mirostat_eta": ignored("there is no such sampler"),
    "dynatemp_exponent": ignored("there is no such sampler"),
    "dry_base": ignored("there is no such sampler"),
    "dry_allowed_length": ignored("there is no such sampler"),
    "dry_penalty_last_n": ignored("there is no such sampler"),
    "dry_sequence_breakers": ignored("there is no such sampler"),
    "xtc_threshold": ignored("there is no such sampler"),
    "n_discard": ignored("nothing is left out of a prompt"),
    "n_indent": ignored("lines are not indented"),
    "t_max_predict_ms": refused("the server's own time limits hold", neutral=(0, -1)),
    "lora": refused("adapters are the operator's", neutral=([],)),
    "reasoning_format": ignored("reasoning has a field of its own"),
    "thinking_forced_open": ignored("the prompt determines whether reasoning is open"),
    "parse_tool_calls": ignored("calls are always parsed"),
    "return_progress": honoured("`prompt_progress` in chunks before the answer, where the engine reports it", BOOLEAN),
    "timings_per_token": honoured("`timings` of the whole answer, with its end", BOOLEAN),
    "use_beam_search": refused("tokens are sampled", neutral=(False,)),
    "length_penalty": refused("it belongs to beam search", neutral=(1.0,)),
    "mirostat": refused("there is no such sampler", neutral=(0,)),
    "dynatemp_range": refused("there is no such sampler", neutral=(0.0,)),
    "dry_multiplier": refused("there is no such sampler", neutral=(0.0,)),
    "xtc_probability": refused("there is no such sampler", neutral=(0.0,)),
    "top_n_sigma": refused("there is no such sampler", neutral=(-1.0,)),
}
"""Fields of vLLM's and llama.cpp's requests, besides those that are honoured here."""
