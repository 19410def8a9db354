"""What a turn is sampled with: the request's options, the agent's, the server's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent_server.agents.agent import Agent
from events.options import GenerationOptions, SamplingParams

SAMPLING_NAMES = frozenset(SamplingParams.__struct_fields__)


def effective_options(
    agent: Agent, options: GenerationOptions, defaults: Mapping[str, object] = MappingProxyType({})
) -> GenerationOptions:
    """The request's options, completed with the agent's own settings, and these with the server's `defaults`."""
    sampling, thinking = options.sampling, options.thinking
    if agent.sampling is not None:
        sampling = _completed(sampling, options.stated, agent.sampling)
    if defaults:
        own = msgspec.convert(defaults, SamplingParams)
        sampling = _completed(sampling, options.stated | (SAMPLING_NAMES - frozenset(defaults)), own)
    if thinking is None:
        thinking = agent.thinking
    return msgspec.structs.replace(options, sampling=sampling, thinking=thinking)


def _completed(given: SamplingParams, stated: frozenset[str], own: SamplingParams) -> SamplingParams:
    """The request's parameters, with the agent's where it states none. Where their lengths contradict each other, the
    agent's gives way."""
    neutral = SamplingParams()
    open_ones = {
        name
        for name in SamplingParams.__struct_fields__
        if name not in stated and getattr(given, name) == getattr(neutral, name)
    }
    made = msgspec.structs.replace(given, **{name: getattr(own, name) for name in open_ones})
    if made.max_tokens is None or made.min_tokens <= made.max_tokens:
        return made
    if "min_tokens" in open_ones:
        return msgspec.structs.replace(made, min_tokens=made.max_tokens)
    return msgspec.structs.replace(made, max_tokens=made.min_tokens)
