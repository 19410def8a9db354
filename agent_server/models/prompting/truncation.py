"""Prompts that are made to fit: by their last tokens, or by the newest turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from ag_ui.core import Message, RunAgentInput

from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.built_prompt import Prompt
from events.options import GenerationOptions

INSTRUCTIONS = ("system", "developer")


def shortened(prompt: Prompt, options: GenerationOptions, limit: int | None) -> Prompt:
    """The prompt with the tokens that `truncate_prompt` keeps, its last ones or as `truncation_side` says; -1 keeps
    what leaves room for `max_tokens`, or for one token. Raises EngineError for a prompt with media, whose places
    would be cut."""
    kept = options.truncate_prompt
    if kept is None:
        return prompt
    if kept < 0:
        kept = len(prompt.token_ids) if limit is None else max(1, limit - (options.sampling.max_tokens or 1))
    if len(prompt.token_ids) <= kept:
        return prompt
    if prompt.media:
        message = "A prompt with pictures or sounds cannot be cut."
        raise EngineError("invalid_request", message, param="truncate_prompt_tokens")
    ids = prompt.token_ids[:kept] if options.truncation_side == "right" else prompt.token_ids[-kept:]
    return msgspec.structs.replace(prompt, token_ids=ids)


def newest(input: RunAgentInput, build: Callable[[RunAgentInput], Prompt]) -> Prompt:
    """The prompt of as many of the newest turns as fit, and a warning where that is not all of them.

    A turn begins with a user's message. Instructions and the last turn always stay. Raises what `build` raises for
    these alone.
    """
    starts = [index for index, message in enumerate(input.messages) if message.role == "user"][1:]
    built = _attempt(input, build)
    if built is not None or not starts:
        return built if built is not None else build(input)
    low, high = 0, len(starts) - 1
    while low < high:  # the fewest turns that must go
        middle = (low + high) // 2
        fits = _attempt(_since(input, starts[middle]), build) is not None
        low, high = (low, middle) if fits else (middle + 1, high)
    part = _since(input, starts[low])
    left_out = len(input.messages) - len(part.messages)
    prompt = build(part)
    told = f"{left_out} messages at the beginning of the conversation were left out, for it does not fit"
    return msgspec.structs.replace(prompt, warnings=(*prompt.warnings, told))


def _attempt(input: RunAgentInput, build: Callable[[RunAgentInput], Prompt]) -> Prompt | None:
    try:
        return build(input)
    except EngineError as error:
        if error.kind != "context_length_exceeded":
            raise
        return None


def _since(input: RunAgentInput, start: int) -> RunAgentInput:
    messages: list[Message] = [message for message in input.messages[:start] if message.role in INSTRUCTIONS]
    return input.model_copy(update={"messages": [*messages, *input.messages[start:]]})
