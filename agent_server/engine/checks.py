"""What every engine refuses in the same words."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine.protocol import EngineError, GenerationRequest
from events.options import OptionError, SamplingParams


def check_length(request: GenerationRequest, context_length: int) -> None:
    """EngineError("context_length_exceeded") unless the prompt, its answer's limit and one token fit."""
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


def changed_sampling(sampling: SamplingParams, changes: dict[str, Any]) -> SamplingParams:
    """`sampling` with some values replaced; EngineError("invalid_request") for a name or value that is none."""
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
