"""`/tokenize` and `/detokenize`: text or a conversation to token ids and back, in vLLM's form, or in llama.cpp's form
if the text is in `content`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from ag_ui.core import RunAgentInput

from adapters.body import DEFAULT_LIMITS, Inbound, Lenient, Limits, convert, flag, read_object, wrong
from adapters.client_history import NewId
from adapters.openai_chat import read_conversation
from adapters.request_fields import BOOLEAN, Field, honoured, read_fields
from adapters.request_options import read_options
from adapters.sse import json_bytes

FIELDS: dict[str, Field] = {
    "model": honoured("a name of `/v1/models`"),
    "prompt": honoured("text, taken as it is"),
    "messages": honoured("a conversation, through the chat template"),
    "tools": honoured("with `messages`"),
    "add_special_tokens": honoured("with `prompt`; true if absent"),
    "return_token_strs": honoured(),
    "chat_template_kwargs": honoured("with `messages`"),
    "enable_thinking": honoured("with `messages`"),
    "continue_final_message": honoured("with `messages`"),
    "content": honoured("text, answered in llama.cpp's form"),
    "add_special": honoured("with `content`; false if absent", BOOLEAN),
    "parse_special": honoured("with `content`; false keeps spelled control tokens text", BOOLEAN),
    "with_pieces": honoured("with `content`; each id with its text", BOOLEAN),
    "add_generation_prompt": honoured("with `messages`; false ends the prompt with the last message", BOOLEAN),
}


class TokenizeFlags(msgspec.Struct, frozen=True, kw_only=True):
    """prompt: None if a conversation is to be rendered. native: answer in llama.cpp's form. control: encode control
    tokens that the text spells as such."""

    prompt: str | None = None
    add_special_tokens: bool = True
    strings: bool = False
    native: bool = False
    control: bool = True


def parse_tokenize(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS) -> Inbound:
    """Read a tokenize body; `extra` is TokenizeFlags. Raises RequestError."""
    values = read_fields(read_object(body, limits), FIELDS)
    if values.get("content") is not None:
        for name in values:
            if name not in ("content", "model", *LLAMACPP) and values[name] is not None:
                raise wrong(name, "cannot be combined with content")
        if not isinstance(content := values["content"], str):
            raise wrong("content", "must be a string")
        flags = TokenizeFlags(
            prompt=content,
            add_special_tokens=flag(values, "add_special"),
            strings=flag(values, "with_pieces"),
            native=True,
            control=flag(values, "parse_special", True),
        )
        options, _ = read_options({"model": values.get("model")}, wire="chat")
        run = RunAgentInput(
            thread_id=new_id("thread"), run_id=new_id("run"), messages=[], tools=[], context=[], state={}
        )
        return Inbound(input=run, options=options, stream=False, extra=flags)
    for name in LLAMACPP:
        if values.get(name) is not None:
            raise wrong(name, "needs content")
    prompt = values.get("prompt")
    if (prompt is None) == (values.get("messages") is None):
        raise wrong("prompt", "or messages must be given, and not both")
    if prompt is not None and not isinstance(prompt, str):
        raise wrong("prompt", "must be a string")
    special = flag(values, "add_special_tokens", True)
    flags = TokenizeFlags(prompt=prompt, add_special_tokens=special, strings=flag(values, "return_token_strs"))
    messages, tools = ([], []) if prompt is not None else read_conversation(values, new_id=new_id, limits=limits)
    names = ("model", "chat_template_kwargs", "enable_thinking", "continue_final_message", "add_generation_prompt")
    options, _ = read_options({name: values[name] for name in names if name in values}, wire="chat")
    run = RunAgentInput(
        thread_id=new_id("thread"),
        run_id=new_id("run"),
        messages=messages,
        tools=tools,
        context=[],
        state={},
        forwarded_props={},
    )
    return Inbound(input=run, options=options, stream=False, extra=flags)


LLAMACPP = ("add_special", "parse_special", "with_pieces")


def native_tokens_body(tokens: Sequence[int], pieces: Sequence[str] | None) -> bytes:
    if pieces is None:
        return json_bytes({"tokens": list(tokens)})
    return json_bytes({"tokens": [{"id": id, "piece": piece} for id, piece in zip(tokens, pieces, strict=True)]})


def template_body(text: str) -> bytes:
    return json_bytes({"prompt": text})


def tokenize_body(tokens: Sequence[int], context_length: int | None, strings: Sequence[str] | None = None) -> bytes:
    fields: dict[str, object] = {"count": len(tokens), "max_model_len": context_length, "tokens": list(tokens)}
    return json_bytes(fields if strings is None else {**fields, "token_strs": list(strings)})


class _Detokenize(Lenient, frozen=True):
    tokens: list[int]
    model: str | None = None


def parse_detokenize(body: bytes, *, limits: Limits = DEFAULT_LIMITS) -> tuple[list[int], str | None]:
    """Read (token ids, model name). Raises RequestError."""
    request: _Detokenize = convert(read_object(body, limits), _Detokenize, "")
    if not all(0 <= token < 2**31 for token in request.tokens):
        raise wrong("tokens", "must hold token ids")
    return request.tokens, request.model


def detokenize_body(text: str) -> bytes:
    """Encode the text under vLLM's name, `prompt`, and llama.cpp's, `content`."""
    return json_bytes({"prompt": text, "content": text})


def tokenizer_info_body(special_tokens: Mapping[str, str], template: str | None, context_length: int | None) -> bytes:
    """Encode what vLLM's `/tokenizer_info` tells of a tokenizer, for clients that render chat templates themselves."""
    return json_bytes(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context_length,
            **special_tokens,
            "chat_template": template,
        }
    )


def render_body(text: str, tokens: Sequence[int]) -> bytes:
    """Encode the prompt as text, and as the ids that `/v1/completions` takes."""
    return json_bytes({"prompt": text, "token_ids": list(tokens), "count": len(tokens)})


def input_tokens_body(tokens: int) -> bytes:
    return json_bytes({"input_tokens": tokens})
