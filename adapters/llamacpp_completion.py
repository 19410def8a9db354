"""llama.cpp's own `/completion`: text or ids go to the model unchanged, with that server's field names.

Its sources are the README.md and the tests of llama.cpp's tools/server. Answers omit the fields about slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from adapters.answer import Answer, fold, raise_failure
from adapters.body import DEFAULT_LIMITS, Inbound, Limits, flag, read_object, wrong
from adapters.client_history import NewId
from adapters.errors import payload
from adapters.openai_completions import MAX_PROMPTS, Prompt
from adapters.openai_tokens import progress_object, timings_object
from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OTHER_SERVERS,
    STRINGS,
    Field,
    honoured,
    ignored,
    read_fields,
    sampling_fields,
)
from adapters.request_options import read_options, top_level_format
from adapters.sse import json_bytes
from events.metadata import Alternative, Scored, tokens_of
from events.options import SamplingParams
from events.vocabulary import PROGRESS_EVENT, Custom, Event, RunError, RunFinished, TextMessageContent, TokenUsage

FROM_OTHERS = (
    "cache_prompt", "id_slot", "n_keep", "n_cache_reuse", "grammar", "json_schema", "post_sampling_probs", "min_keep",
    "repeat_last_n", "samplers", "mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range", "dynatemp_exponent",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "xtc_probability", "xtc_threshold", "top_n_sigma", "n_discard", "n_indent", "t_max_predict_ms", "lora",
    "return_progress",
)  # fmt: skip
SPELLED_OTHERWISE = ("max_tokens", "logprobs", "logit_bias")
FIELDS: dict[str, Field] = {
    **{name: field for name, field in sampling_fields("completions").items() if name not in SPELLED_OTHERWISE},
    **{name: OTHER_SERVERS[name] for name in FROM_OTHERS},
    "prompt": honoured("text, ids, both mixed, `{prompt_string}`, or a list of such prompts"),
    "n_predict": honoured("-1: until the context is full", INTEGER),
    "max_tokens": honoured("`n_predict` by its other name", INTEGER),
    "n_probs": honoured("alternatives reported for each token", INTEGER),
    "logit_bias": honoured("pairs of an id or a text and a number or false, or an object of them"),
    "stream": honoured("", BOOLEAN),
    "return_tokens": honoured("the ids of an answer that is not streamed", BOOLEAN),
    "response_fields": honoured("of the answer; those of an object as `generation_settings/n_predict`", STRINGS),
    "timings_per_token": ignored("`timings` are reported at the end of the answer"),
}
BANNED = -100.0
"""The bias for `false`, which bans the token."""
Encode = Callable[[str], list[int]]


class NativeFlags(msgspec.Struct, frozen=True, kw_only=True):
    """prompts: each as text or ids. settings: the `generation_settings` that the answer repeats. probs: alternatives
    for each token."""

    prompts: tuple[Prompt, ...]
    settings: dict[str, Any] = {}
    probs: int | None = None
    tokens: bool = False
    fields: tuple[str, ...] = ()
    unlimited: bool = False


def parse(body: bytes, *, new_id: NewId, encode: Encode, limits: Limits = DEFAULT_LIMITS) -> Inbound:
    """Read a completion body. encode: text to ids, without adding special tokens. Raises RequestError."""
    values = read_fields(read_object(body, limits), FIELDS)
    prompt = values.get("prompt")
    if not isinstance(prompt, list) or any(type(item) is int for item in prompt):  # a list with ids is one prompt
        prompts: tuple[Prompt, ...] = (_prompt(prompt, "prompt", encode),)
    elif 1 <= len(prompt) <= MAX_PROMPTS:
        prompts = tuple(_prompt(item, f"prompt.{i}", encode) for i, item in enumerate(prompt))
    else:
        raise wrong("prompt", f"must have 1 to {MAX_PROMPTS} prompts")
    source = {name: value for name, value in values.items() if name != "n_probs"}
    most, probs = _whole(values, "n_predict"), _whole(values, "n_probs")
    most = _whole(values, "max_tokens") if most is None else most  # llama.cpp accepts both names
    source |= {"max_tokens": most if most is not None and most >= 0 else None, "logprobs": probs or None}
    source["logit_bias"] = _biases(values.get("logit_bias"), encode)
    options, _ = read_options(source, wire="completions")
    changes: dict[str, Any] = {"raw_prompt": prompts[0], "store": False, "token_details": True}
    if (shape := top_level_format(values)) is not None:
        changes["response_format"] = shape
    options = msgspec.structs.replace(options, **changes)
    run = RunAgentInput(
        thread_id=new_id("thread"), run_id=new_id("run"), messages=[], tools=[], context=[], state={},
        forwarded_props={},
    )  # fmt: skip
    fields = [] if values.get("response_fields") is None else values["response_fields"]
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise wrong("response_fields", "must be a list of names")
    # The request's settings under llama.cpp's names; null where the model's default applies.
    sampling: SamplingParams = options.sampling
    settings = {
        "n_predict": -1 if sampling.max_tokens is None else sampling.max_tokens,
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
        "n_probs": sampling.logprobs or 0,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias.items()],
    }
    flags = NativeFlags(
        prompts=prompts,
        settings=settings,
        probs=probs or None,
        tokens=flag(values, "return_tokens"),
        fields=tuple(fields),
        unlimited=options.sampling.max_tokens is None,
    )
    return Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)


def _whole(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise wrong(name, "must be a whole number")
    return value


def _prompt(value: object, at: str, encode: Encode) -> Prompt:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise wrong(f"{at}.multimodal_data", "is not supported here; send media to /v1/chat/completions")
        value = value.get("prompt_string")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong(at, "must be text, token ids, or both in a list")
    ids: list[int] = []
    for item in value:
        if type(item) is int and 0 <= item < 2**31:
            ids.append(item)
        elif isinstance(item, str):
            ids += encode(item)
        else:
            raise wrong(at, "must contain only token ids and texts")
    return tuple(ids)


def _biases(value: object, encode: Encode) -> dict[str, float] | None:
    """Read biases by token id from pairs or an object, whose keys are ids, ids as text, or texts."""
    if value is None:
        return None
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise wrong("logit_bias", "must be pairs of a token and a bias, or an object of them")
    biases: dict[str, float] = {}
    for token, bias in pairs:
        if type(token) is int:
            ids = [token]
        elif isinstance(token, str):
            ids = [int(token)] if token.isascii() and token.isdigit() else encode(token)
        else:
            raise wrong("logit_bias", "must name tokens by their ids or as text")
        if bias is not False and (isinstance(bias, bool) or not isinstance(bias, int | float)):
            raise wrong("logit_bias", "must have a number or false for each token")
        biases |= {str(number): BANNED if bias is False else float(bias) for number in ids}
    return biases


class NativeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """prompt_texts: each prompt as text."""

    model: str
    prompt_texts: tuple[str, ...]


class NativeStream:
    """Encodes the events of the runs, distinguished by `choice`. The last frame of each has `stop: true`; there is no
    end mark."""

    content_type = "text/event-stream"

    def __init__(self, identity: NativeIdentity, flags: NativeFlags) -> None:
        self._identity = identity
        self._flags = flags
        self._texts = [""] * len(flags.prompts)
        self._counts = [0] * len(flags.prompts)

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        match event:
            case TextMessageContent(subagent_run_id=None):
                tokens = tokens_of(event.metadata or {})
                if not tokens and not event.delta:
                    return b""
                self._texts[choice] += event.delta
                self._counts[choice] += len(tokens)
                fields: dict[str, Any] = {
                    "index": choice,
                    "content": event.delta,
                    "tokens": [token[0] for token in tokens],
                }
                fields |= {"stop": False, "tokens_predicted": self._counts[choice]}
                if self._flags.probs is not None:
                    fields["completion_probabilities"] = probabilities(tokens, self._flags.probs)
                return _frame(fields)
            case Custom(name=name, value=value) if name == PROGRESS_EVENT:
                fields = {"index": choice, "content": "", "tokens": [], "stop": False}
                return _frame({**fields, "prompt_progress": progress_object(value)})
            case RunFinished():
                end = ending(fold([event]), choice, self._identity, self._flags, self._texts[choice])
                return _frame({**end, "content": "", "tokens": []})
            case RunError():
                return _frame(payload("openai", event.code or "internal", event.message))
        return b""

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"


def _frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def native_body(runs: Sequence[Sequence[Event]], identity: NativeIdentity, flags: NativeFlags) -> bytes:
    """Encode one object, or a list of them for several prompts. Raises RequestError for a failed run."""
    answers = [fold(events) for events in runs]
    for answer in answers:
        raise_failure(answer, "completions")
    bodies: list[dict[str, Any]] = []
    for index, answer in enumerate(answers):
        fields = ending(answer, index, identity, flags, answer.text)
        fields["tokens"] = [token[0] for token in answer.pieces.tokens] if flags.tokens else []
        if flags.probs is not None:
            fields["completion_probabilities"] = probabilities(answer.pieces.text_tokens, flags.probs)
        if flags.fields:
            fields = {name: value for name in flags.fields for value in _at(fields, name)}
        bodies.append(fields)
    return json_bytes(bodies[0] if len(bodies) == 1 else bodies)


def _at(fields: Mapping[str, Any], name: str) -> list[object]:
    """Return the value at a path such as `generation_settings/n_predict` as a list, which is empty if there is
    none."""
    value: Any = fields
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    return [value]


def ending(answer: Answer, index: int, identity: NativeIdentity, flags: NativeFlags, text: str) -> dict[str, Any]:
    """Return the fields of an answer's last frame. text: the whole answer."""
    usage: Sequence[TokenUsage] = answer.usage
    word = answer.stop if isinstance(answer.stop, str) else ""
    fields: dict[str, Any] = {
        "index": index,
        "content": text,
        "model": identity.model,
        "stop": True,
        "stop_type": "limit" if answer.finish == "length" else "word" if word else "eos",
        "stopping_word": word,
        "tokens_predicted": sum(each.output_tokens or 0 for each in usage),
        "tokens_evaluated": sum(each.input_tokens or 0 for each in usage),
        "tokens_cached": sum(each.cached_input_tokens or 0 for each in usage),
        "has_new_line": "\n" in text,
        "truncated": answer.finish == "length" and flags.unlimited,
        "prompt": identity.prompt_texts[index],
        "generation_settings": flags.settings,
        "timings": timings_object(answer.metadata.timings, usage),
    }
    if warnings := list(answer.warnings):
        fields["warnings"] = warnings
    return fields


def probabilities(tokens: Sequence[Scored], most: int) -> list[dict[str, object]]:
    """Return `completion_probabilities`: log probabilities before the sampling filters."""
    return [
        {**_as_object(token), "top_logprobs": [_as_object(each) for each in (token[3] or ())[:most]]}
        for token in tokens
    ]


def _as_object(token: Scored | Alternative) -> dict[str, object]:
    return {"id": token[0], "token": token[1], "bytes": list(token[1].encode()), "logprob": token[2]}
