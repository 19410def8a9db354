"""Continuing a generation whose engine was lost: the decisions that are common to all engines."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent_server.engine_protocol.detokenizer import OutputText
from agent_server.engine_protocol.protocol import EngineInfo, FinishReason, GenerationRequest


class AnswerEnd(msgspec.Struct, frozen=True):
    """How an answer ended. stop: as in Finished."""

    reason: FinishReason
    stop: str | int | None = None


def already_ended(
    request: GenerationRequest, output: OutputText, eos: Collection[int] = (), limit: int | None = None
) -> AnswerEnd | None:
    """Return how the answer ended if `request.generated` is already the whole answer, or None if tokens are missing.

    The answer is whole if the lost engine had sent every token but not `Finished`. output: has received those tokens.
    eos: ids that end an answer and are not reported as its stop. limit: the maximum number of tokens of the answer.
    """
    generated, sampling = request.generated, request.sampling
    if not generated:
        return None
    if output.stopped is not None:
        return AnswerEnd("stop", output.stopped)
    last = generated[-1]
    ends_early = len(generated) <= sampling.min_tokens
    if not ends_early and last in eos and not sampling.ignore_eos:
        return AnswerEnd("stop")
    if not ends_early and last in sampling.stop_token_ids:
        return AnswerEnd("stop", None if last in eos else last)
    limits = [each for each in (limit, sampling.max_tokens) if each is not None]
    return AnswerEnd("length") if limits and len(generated) >= min(limits) else None


def as_prompt(request: GenerationRequest) -> GenerationRequest:
    """Return the request for an engine that only accepts prompts: the tokens so far are appended to the prompt, and
    `max_tokens` and `min_tokens` are reduced by their number. Only for requests that have not `already_ended`."""
    count = len(request.generated)
    if not count:
        return request
    sampling = request.sampling
    max_tokens = None if sampling.max_tokens is None else sampling.max_tokens - count
    return msgspec.structs.replace(
        request,
        prompt_token_ids=request.prompt_token_ids + request.generated,
        generated=(),
        sampling=msgspec.structs.replace(
            sampling, max_tokens=max_tokens, min_tokens=max(0, sampling.min_tokens - count), prompt_logprobs=None
        ),
    )


def may_continue(request: GenerationRequest, info: EngineInfo) -> bool:
    """Return whether the engine would continue the tokens so far correctly.

    An engine that treats them as part of the prompt restarts grammars, seeded random numbers and penalties on the
    answer, so it may continue only requests that use none of these."""
    if info.continues != "plain":
        return info.continues == "exact"
    sampling = request.sampling
    seeded = sampling.seed is not None and sampling.temperature != 0
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    return request.constraint is None and not seeded and not penalised
