"""The sampling parameters and the reading of one turn's output: the request's options, else the server's settings."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from ag_ui.core import RunAgentInput

from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.constraints import enforced_tools
from agent_server.settings import OutputSettings
from events.options import GenerationOptions, SamplingParams
from events.parsing.policy import Policy, declared_tools
from events.plain import PlainTranslator
from events.translator import Translator

_JSON_KINDS = ("json_object", "json_schema")


def sampling_for(prompt: Prompt, sampling: SamplingParams) -> SamplingParams:
    """The sampling with the template's end tokens as stop ids, unless `ignore_eos` is set."""
    stops = prompt.stop_token_ids
    if sampling.ignore_eos or not stops:
        return sampling
    return msgspec.structs.replace(sampling, stop_token_ids=tuple(dict.fromkeys([*sampling.stop_token_ids, *stops])))


def open_translator(
    prompt: Prompt,
    input: RunAgentInput,
    options: GenerationOptions,
    settings: OutputSettings,
    new_id: Callable[[str], str],
) -> Translator | PlainTranslator:
    """The translator for one turn's output. The output of a raw prompt is treated as text only."""
    if options.raw_prompt is not None or options.special_tokens:
        return PlainTranslator(new_id, {} if options.special_tokens else prompt.special_tokens)
    return Translator(
        prompt.output_format,
        tools=input.tools or [],
        opened=prompt.opened,
        new_id=new_id,
        marker_ids=prompt.marker_ids,
        hidden=prompt.special_tokens,
        policy=policy_for(input, options, settings),
        delivery=options.delivery or settings.delivery,
    )


def policy_for(input: RunAgentInput, options: GenerationOptions, settings: OutputSettings) -> Policy:
    declared = declared_tools(input.tools or []) or {}
    required = options.tool_choice.mode in ("required", "named")
    return Policy(
        tools={} if options.tool_choice.mode == "none" else declared,
        parallel=options.parallel_tool_calls,
        distinct=required,
        only_calls=required and bool(enforced_tools(input, options, settings)),
        json_content=options.response_format is not None and options.response_format.kind in _JSON_KINDS,
        boundaries=options.boundaries or settings.boundaries,
        undeclared=settings.undeclared,
        failed=settings.failed,
        unmarked=settings.unmarked_calls,
    )
