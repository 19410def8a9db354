"""Truncation of prompts: to their last tokens, or to the newest turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from ag_ui.core import Message, RunAgentInput

from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.built_prompt import Prompt
from events.options import GenerationOptions

INSTRUCTIONS = ("system", "developer")


def answer_room(options: GenerationOptions, limit: int | None) -> int:
    """Return how many tokens of the context a truncated prompt leaves for the answer: `max_tokens`, but at most a
    quarter, since clients ask for as much as the largest models give."""
    asked = options.sampling.max_tokens or 1
    return asked if limit is None else max(1, min(asked, limit // 4))


def shortened(prompt: Prompt, options: GenerationOptions, limit: int | None) -> Prompt:
    """Truncate a prompt to `truncate_prompt` tokens, on the side that `truncation_side` names; -1 leaves
    `answer_room`. Raises EngineError for a prompt with media, whose placeholders could be cut."""
    count = options.truncate_prompt
    if count is None:
        return prompt
    if count < 0:
        count = len(prompt.token_ids) if limit is None else max(1, limit - answer_room(options, limit))
    if len(prompt.token_ids) <= count:
        return prompt
    if prompt.media:
        message = "A prompt with pictures or sounds cannot be truncated."
        raise EngineError("invalid_request", message, param="truncate_prompt_tokens")
    ids = prompt.token_ids[:count] if options.truncation_side == "right" else prompt.token_ids[-count:]
    return msgspec.structs.replace(prompt, token_ids=ids)


def newest(input: RunAgentInput, room: int, build: Callable[[RunAgentInput, int], Prompt]) -> Prompt:
    """Build the prompt of as many of the newest turns as fit, with a warning if some are left out.

    A turn begins with a user message. Instructions and the last turn are always kept, and leave at least one token for
    the answer. room: tokens that the answer gets where turns can be left out for it. build: builds the prompt of a part
    of the conversation that leaves a number of tokens. Raises what `build` raises for the last turn and one token.
    """
    starts = [index for index, message in enumerate(input.messages) if message.role == "user"][1:]
    whole_prompt = _attempt(input, room, build)
    if whole_prompt is not None or not starts:
        return whole_prompt if whole_prompt is not None else build(input, 1)
    low, high = 0, len(starts) - 1
    while low < high:  # search for the fewest turns to leave out
        middle = (low + high) // 2
        fits = _attempt(_since(input, starts[middle]), room, build) is not None
        low, high = (low, middle) if fits else (middle + 1, high)
    part = _since(input, starts[low])
    left_out = len(input.messages) - len(part.messages)
    prompt = build(part, 1)
    warning = f"{left_out} messages at the beginning of the conversation were left out, because it does not fit"
    return msgspec.structs.replace(prompt, warnings=(*prompt.warnings, warning))


def _attempt(input: RunAgentInput, room: int, build: Callable[[RunAgentInput, int], Prompt]) -> Prompt | None:
    try:
        return build(input, room)
    except EngineError as error:
        if error.kind != "context_length_exceeded":
            raise
        return None


def _since(input: RunAgentInput, start: int) -> RunAgentInput:
    messages: list[Message] = [message for message in input.messages[:start] if message.role in INSTRUCTIONS]
    return input.model_copy(update={"messages": [*messages, *input.messages[start:]]})
