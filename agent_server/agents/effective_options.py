"""The options of a turn: the request's, completed with the agent's and the server's."""

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
    """The request's options, completed with the agent's settings, then with the server's `defaults`."""
    sampling, thinking = options.sampling, options.thinking
    if agent.sampling is not None:
        sampling = _completed(sampling, options.stated, agent.sampling)
    if defaults:
        own = msgspec.convert(defaults, SamplingParams)
        sampling = _completed(sampling, options.stated | (SAMPLING_NAMES - frozenset(defaults)), own)
    if thinking is None:
        thinking = agent.thinking
    return msgspec.structs.replace(options, sampling=sampling, thinking=thinking)


def _completed(request_sampling: SamplingParams, stated: frozenset[str], defaults: SamplingParams) -> SamplingParams:
    """The request's parameters, with the defaults where the request states none. If min_tokens then exceeds max_tokens,
    the one from the defaults is adjusted."""
    neutral = SamplingParams()
    unset = {
        name
        for name in SamplingParams.__struct_fields__
        if name not in stated and getattr(request_sampling, name) == getattr(neutral, name)
    }
    completed = msgspec.structs.replace(request_sampling, **{name: getattr(defaults, name) for name in unset})
    if completed.max_tokens is None or completed.min_tokens <= completed.max_tokens:
        return completed
    if "min_tokens" in unset:
        return msgspec.structs.replace(completed, min_tokens=completed.max_tokens)
    return msgspec.structs.replace(completed, max_tokens=completed.min_tokens)
