"""Events → Chat Completions in one piece: a `chat.completion` body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.answer import Answer, fold, raise_failure
from adapters.custom_tools import input_of
from adapters.frame_json import json_bytes
from adapters.openai_chat.chat_inbound import ChatFlags
from adapters.openai_chat.chat_outbound import (
    ANSWERED,
    NO_FLAGS,
    ChatIdentity,
    error_object,
    extensions_of,
    logprobs_object,
    stop_text,
    wire_finish,
)
from adapters.openai_tokens import combined_usage, prompt_logprobs, timings_object
from events.run_output import FinishedCall
from events.vocabulary import Event


def chat_body(runs: Sequence[Sequence[Event]], identity: ChatIdentity, flags: ChatFlags = NO_FLAGS) -> bytes:
    """The finished runs of all `n` choices as one `chat.completion`.

    Raises RequestError for a run that ended with RUN_ERROR, with the run's kind.
    """
    answers = [fold(events, hidden_tools=identity.hidden_tools) for events in runs]
    for answer in answers:
        raise_failure(answer, "chat", ANSWERED)
    broken = next((answer for answer in answers if answer.finish in ("error", "cancelled")), None)
    body: dict[str, Any] = {
        "id": identity.id,
        "object": "chat.completion",
        "created": identity.created,
        "model": identity.model,
        "choices": [_choice(answer, index, identity, flags) for index, answer in enumerate(answers)],
        "usage": combined_usage([answer.usage for answer in answers]),
        "extensions": _body_extensions(answers, flags),
    }
    if broken is not None:
        body["error"] = error_object(broken.error)
    if flags.timings and answers:
        body["timings"] = timings_object(answers[0].metadata.timings, answers[0].usage)
    if flags.prompt_logprobs is not None and answers:
        body["prompt_logprobs"] = prompt_logprobs(answers[0].metadata.prompt_logprobs or (), flags.prompt_logprobs)
    if flags.token_ids and answers and (ids := answers[0].metadata.prompt_token_ids) is not None:
        body["prompt_token_ids"] = ids
    return json_bytes(body)


def _choice(answer: Answer, index: int, identity: ChatIdentity, flags: ChatFlags) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": index,
        "message": _message(answer, identity, flags),
        "logprobs": _body_logprobs(answer, flags),
        "finish_reason": wire_finish(answer.finish, flags.named_tool, flags.functions),
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if flags.token_ids:
        choice["token_ids"] = [token[0] for token in answer.pieces.tokens]
    return choice


def _message(answer: Answer, identity: ChatIdentity, flags: ChatFlags) -> dict[str, Any]:
    text = answer.text + stop_text(answer.stop, flags.include_stop)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if answer.calls else ""),
        "refusal": None,
    }
    if answer.reasoning and flags.reasoning:
        message["reasoning"] = answer.reasoning
        if identity.reasoning_content:
            message["reasoning_content"] = answer.reasoning
    if answer.calls and flags.functions:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [_called(call, flags) for call in answer.calls]
    return message


def _called(call: FinishedCall, flags: ChatFlags) -> dict[str, object]:
    if call.name in flags.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _body_logprobs(answer: Answer, flags: ChatFlags) -> dict[str, object] | None:
    if flags.logprobs is None:
        return None
    kinds = {
        "content": answer.pieces.text_tokens,
        "reasoning": answer.pieces.reasoning_tokens if flags.reasoning else [],
    }
    kinds["tool_calls"] = answer.pieces.call_tokens
    return logprobs_object(kinds, flags.logprobs, flags.as_ids)


def _body_extensions(answers: Sequence[Answer], flags: ChatFlags) -> dict[str, object]:
    """The specification's `extensions`; with several choices the chunks of all, in their order."""
    interrupts = [interrupt for answer in answers for interrupt in answer.interrupts]
    warnings = list(dict.fromkeys(warning for answer in answers for warning in answer.warnings))
    return {
        "reasoning_chunks": [chunk for answer in answers for chunk in answer.pieces.reasoning if flags.reasoning],
        "tool_call_chunks": [chunk for answer in answers for chunk in answer.pieces.calls],
        **extensions_of(warnings, interrupts),
    }
