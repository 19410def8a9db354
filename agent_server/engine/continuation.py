"""A generation that goes on where another engine was lost: what every engine decides in the same way."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent_server.engine.detokenizer import OutputText
from agent_server.engine.protocol import EngineInfo, FinishReason, GenerationRequest


class Ended(msgspec.Struct, frozen=True):
    """How an answer ended; `stop` as in Finished."""

    reason: FinishReason
    stop: str | int | None = None


def already_ended(
    request: GenerationRequest, output: OutputText, eos: Collection[int] = (), limit: int | None = None
) -> Ended | None:
    """How the answer ended if `request.generated` is all of it, so that only the word of its end was lost; else None.

    output: has taken those tokens. eos: ids that end an answer without being named as its stop. limit: the most tokens
    that the answer may have.
    """
    generated, sampling = request.generated, request.sampling
    if not generated:
        return None
    if output.stopped is not None:
        return Ended("stop", output.stopped)
    last = generated[-1]
    ends_early = len(generated) <= sampling.min_tokens
    if not ends_early and last in eos and not sampling.ignore_eos:
        return Ended("stop")
    if not ends_early and last in sampling.stop_token_ids:
        return Ended("stop", None if last in eos else last)
    limits = [each for each in (limit, sampling.max_tokens) if each is not None]
    return Ended("length") if limits and len(generated) >= min(limits) else None


def as_prompt(request: GenerationRequest) -> GenerationRequest:
    """The request for an engine that knows prompts alone: the tokens so far follow the prompt, and the limits are
    less by their number. For requests that are not `already_ended`."""
    count = len(request.generated)
    if not count:
        return request
    sampling = request.sampling
    left = None if sampling.max_tokens is None else sampling.max_tokens - count
    return msgspec.structs.replace(
        request,
        prompt_token_ids=request.prompt_token_ids + request.generated,
        generated=(),
        sampling=msgspec.structs.replace(
            sampling, max_tokens=left, min_tokens=max(0, sampling.min_tokens - count), prompt_logprobs=None
        ),
    )


def may_continue(request: GenerationRequest, info: EngineInfo) -> bool:
    """Whether the engine, given the tokens so far, yields a rest that fits them."""
    if info.continues != "plain":
        return info.continues == "exact"
    sampling = request.sampling
    seeded = sampling.seed is not None and sampling.temperature != 0
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    return request.constraint is None and not seeded and not penalised
