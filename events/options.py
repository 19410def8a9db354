"""GenerationOptions: everything a request may say about *how* to generate, on whatever wire it came.

Together with AG-UI's own RunAgentInput (what to answer) this is the whole inbound model; adapters fill it, the agent
turn reads it. Names are the field's own; ranges are checked once, in `SamplingParams.validate`, so that every wire
refuses the same values.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec


class OptionError(ValueError):
    """An option out of range. `param` is the attribute's name, `message` a sentence that says what is allowed."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param} {message}")
        self.param = param
        self.message = message


# attribute → (least, most); None is unbounded. The bounds are inclusive, but for those named in _ABOVE_LEAST.
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, None),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
_ABOVE_LEAST = frozenset({"top_p", "typical_p", "repetition_penalty"})
_MAX_STOP_STRINGS = 64
_MAX_BIAS = 100.0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. None means: the model's generation_config, else the neutral value.

    temperature: 0 is greedy. top_p, min_p, typical_p: probabilities. top_k: 0 is off. logit_bias: token id → added
    logit. seed: same seed, same tokens, whatever else is in the batch. stop: strings that end the generation and are
    not sent. logprobs: number of alternatives to report per token (0: the chosen token alone), None: no logprobs.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def validate(self) -> None:
        """Raise OptionError for the first value outside its range."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not _within(value, least, most, name in _ABOVE_LEAST):
                raise OptionError(name, f"must be {_describe(least, most, name in _ABOVE_LEAST)}.")
        if len(self.stop) > _MAX_STOP_STRINGS or "" in self.stop:
            raise OptionError("stop", f"must hold at most {_MAX_STOP_STRINGS} strings, none of them empty.")
        if not all(_within(bias, -_MAX_BIAS, _MAX_BIAS, False) for bias in self.logit_bias.values()):
            raise OptionError("logit_bias", "must map token ids to numbers from -100 to 100.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError("min_tokens", "must not be more than max_tokens.")


def _within(value: float, least: float | None, most: float | None, above: bool) -> bool:
    if not math.isfinite(value):
        return False
    low = least is None or value > least or (value == least and not above)
    return low and (most is None or value <= most)


def _describe(least: float | None, most: float | None, above: bool) -> str:
    low = f"more than {least}" if above else f"at least {least}"
    return low if most is None else f"{low} and at most {most}"


class ToolChoice(msgspec.Struct, frozen=True):
    """Which tools may or must be called. `names` restricts the choice ("named": exactly one; "auto" or "required"
    with names: OpenAI's allowed_tools)."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A shape that the answer's content must have. `value` is the JSON schema, pattern, choices or grammar."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]
    value: Any = None
    name: str | None = None
    strict: bool = False


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One request's options.

    model: the name the client asked for. n: number of answers. thinking: None leaves the template's default.
    template_kwargs: allow-listed extra variables for the chat template (never the template itself).
    raw_prompt: text or token ids that go to the engine as they are, with no chat template and no parsing (text
    completion wires). strict_tools: names of tools whose schema must be enforced or refused.
    token_details: attach token ids, texts and logprobs to the events' metadata (`tokens`).
    continue_final_message: the last assistant message is a prefill to be continued: its text, or its reasoning where
        it has no text yet; "content" closes the reasoning of a message without text.
    """

    model: str | None = None
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    strict_tools: frozenset[str] = frozenset()
    response_format: ResponseFormat | None = None
    thinking: bool | None = None
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = {}
    raw_prompt: str | tuple[int, ...] | None = None
    continue_final_message: bool | Literal["content"] = False
    delivery: Literal["immediate", "adaptive"] | None = None
    boundaries: Literal["lenient", "strict"] | None = None
    token_details: bool = False
    constrain_tools: bool | None = None
    store: bool = True
    user: str | None = None
    metadata: dict[str, Any] = {}
