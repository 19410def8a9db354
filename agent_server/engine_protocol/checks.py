"""Checks of a request that all engines share, so that they refuse it with the same messages."""

from __future__ import annotations

import msgspec

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, GenerationRequest
from events.options import OptionError, SamplingParams


def check_length(request: GenerationRequest, context_length: int) -> None:
    """Raises EngineError("context_length_exceeded") unless the prompt fits with `max_tokens`, and with at least one
    token."""
    prompt = len(request.prompt_token_ids)
    if prompt == 0:
        raise EngineError("invalid_request", "The prompt is empty.", param="prompt")
    if prompt >= context_length:
        raise EngineError(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens; this model's context holds {context_length}.",
            param="prompt",
        )
    wanted = request.sampling.max_tokens or 0
    if prompt + wanted > context_length:
        raise EngineError(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens and up to {wanted} are to be generated; "
            f"this model's context holds {context_length}.",
            param="max_tokens",
        )


def check_supported(request: GenerationRequest, info: EngineInfo) -> None:
    """Raises EngineError("invalid_request") for ids outside of the vocabulary and for parameters that the engine does
    not support. An unsupported parameter is never ignored."""
    sampling = request.sampling
    given = {"prompt": request.prompt_token_ids, "logit_bias": sampling.logit_bias}
    for param, ids in (given | {"allowed_token_ids": sampling.allowed_token_ids}).items():
        if ids and not 0 <= min(ids) <= max(ids) < info.vocab_size:
            bad = next(number for number in ids if not 0 <= number < info.vocab_size)
            message = f"The token id {bad} is outside of the vocabulary of {info.vocab_size}."
            raise EngineError("invalid_request", message, param=param)
    for param in sorted(sampling.asked() - info.sampling):
        raise EngineError("invalid_request", f"This engine does not support {param}.", param=param)
    if request.adapter and not info.adapters:
        raise EngineError("invalid_request", "This engine takes no LoRA adapters beside the weights.", param="model")
    if request.pictures:
        _check_media(request, info, "image", "pictures", len(request.pictures))
    if request.sounds:
        _check_media(request, info, "audio", "sounds", len(request.sounds))
    if request.constraint is not None and not info.supports_constraints:
        raise EngineError("invalid_request", "This engine does not support response_format.", param="response_format")


def _check_media(request: GenerationRequest, info: EngineInfo, kind: str, noun: str, given: int) -> None:
    placeholder = info.placeholders.get(kind)
    if placeholder is None:
        raise EngineError("invalid_request", f"This model takes no {noun}.", param="messages")
    found = request.prompt_token_ids.count(placeholder)
    if found != given:
        message = f"The prompt has {found} places for {given} {noun}: the chat template leaves some out."
        raise EngineError("invalid_request", message, param="messages")


def changed_sampling(sampling: SamplingParams, changes: dict[str, object]) -> SamplingParams:
    """`sampling` with some values replaced. Raises EngineError("invalid_request") for an unknown name or a bad
    value."""
    unknown = set(changes) - set(SamplingParams.__struct_fields__)
    if unknown:
        raise EngineError("invalid_request", f"Unknown sampling parameter {min(unknown)}.", param=min(unknown))
    try:
        merged = msgspec.convert({**msgspec.structs.asdict(sampling), **changes}, SamplingParams)
        merged.validate()
    except msgspec.ValidationError as error:
        raise EngineError("invalid_request", str(error)) from None
    except OptionError as error:
        raise EngineError("invalid_request", str(error), param=error.param) from None
    return merged
