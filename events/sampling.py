"""The table of sampling parameters: each field of SamplingParams is annotated with everything about its parameter.

Everything that needs all parameters reads this table: the wires' parsers and field tables, the generated page of
request fields, the engines' refusals, and each upstream dialect, which refuses every parameter that it does not map. A
parameter that is added here is therefore accepted on every wire, and refused by name by every engine that does not
support it; no engine can silently ignore it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from operator import is_not
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec

Wire = Literal["chat", "completions", "responses", "messages", "agui", "generate"]
WIRES: tuple[Wire, ...] = get_args(Wire)
_REPETITION = ("repetition_penalty", "repeat_penalty")
_WITHOUT_PROMPT_SCORES: Mapping[Wire, tuple[str, ...]] = {"responses": (), "messages": ()}


class OptionError(ValueError):
    """An option is out of range. param: the attribute's name. message: the allowed range."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param} {message}")
        self.param = param
        self.message = message


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one sampling parameter.

    note: its effect, for the documentation. least, most: inclusive bounds of the value, or of each value of a
    mapping; None is unbounded. above: the value must be more than `least`. items: the most items of a list. neutral: a
    value that has no effect, besides the field's default. from_model: the model's generation_config is the default.
    example: a value that has an effect. names: the field names on wires that do not use the parameter's own name; if a
    request has several of them, the last one counts; () for a wire without such a field.
    """

    note: str
    example: object
    least: float | None = None
    most: float | None = None
    above: bool = False
    items: int | None = None
    neutral: object = None
    from_model: bool = False
    names: Mapping[Wire, tuple[str, ...]] = {}

    def check(self, name: str, value: object) -> None:
        """Raise OptionError for a value out of bounds. The type must be checked already."""
        if isinstance(value, int | float) and not self._within(value):
            low = f"more than {self.least}" if self.above else f"at least {self.least}"
            raise OptionError(name, f"must be {low if self.most is None else f'{low} and at most {self.most}'}.")
        if isinstance(value, tuple) and self.items is not None and (len(value) > self.items or "" in value):
            raise OptionError(name, f"must have at most {self.items} items, none of them empty.")
        if isinstance(value, dict) and not all(map(self._within, value.values())):
            raise OptionError(name, f"must map token ids to numbers from {self.least} to {self.most}.")

    def _within(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        low = self.least is None or value > self.least or (value == self.least and not self.above)
        return low and (self.most is None or value <= self.most)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the next token is chosen. None means the model's generation_config or else the neutral value."""

    temperature: Annotated[
        float | None,
        Parameter(note="0 is greedy", least=0, most=100, neutral=1.0, from_model=True, example=0.5),
    ] = None
    top_p: Annotated[
        float | None,
        Parameter(
            note="keeps the most likely tokens that together have this probability",
            least=0, most=1, above=True, neutral=1.0, from_model=True, example=0.5,
        ),
    ] = None  # fmt: skip
    top_k: Annotated[
        int | None,
        Parameter(note="keeps this many tokens; 0 and -1 are off", least=0, neutral=0, from_model=True, example=5),
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(
            note="drops tokens that are less likely than this fraction of the most likely one",
            least=0, most=1, neutral=0.0, from_model=True, example=0.1,
        ),
    ] = None  # fmt: skip
    typical_p: Annotated[
        float | None,
        Parameter(
            note="locally typical sampling", least=0, most=1, above=True, neutral=1.0, from_model=True, example=0.9
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Parameter(
            note="divides the logits of tokens that are in the prompt or answer",
            least=0, most=100, above=True, neutral=1.0, from_model=True, example=1.1,
            names={"chat": _REPETITION, "completions": _REPETITION},
        ),
    ] = None  # fmt: skip
    presence_penalty: Annotated[
        float, Parameter(note="is subtracted once from tokens of the answer", least=-2, most=2, example=1.0)
    ] = 0.0
    frequency_penalty: Annotated[
        float, Parameter(note="is subtracted once for each time a token was generated", least=-2, most=2, example=1.0)
    ] = 0.0
    logit_bias: Annotated[
        dict[int, float], Parameter(note="token id → added logit", least=-100, most=100, example={5: 1.0})
    ] = {}
    seed: Annotated[
        int | None,
        Parameter(
            note="same seed, same tokens, whatever else is in the batch", least=-(2**63), most=2**64 - 1, example=1
        ),
    ] = None
    stop: Annotated[
        tuple[str, ...],
        Parameter(
            note="strings that end the generation and are not sent",
            items=64, example=("x",), names={"messages": ("stop_sequences",)},
        ),
    ] = ()  # fmt: skip
    stop_token_ids: Annotated[tuple[int, ...], Parameter(note="ids that end the generation", example=(5,))] = ()
    max_tokens: Annotated[
        int | None,
        Parameter(
            note="maximum number of tokens of the answer", least=1, most=2**31 - 1, example=5,
            names={
                "chat": ("max_tokens", "max_completion_tokens"),
                "agui": ("max_tokens", "max_completion_tokens"),
                "generate": ("max_tokens", "max_completion_tokens"),
                "responses": ("max_output_tokens",),
            },
        ),
    ] = None  # fmt: skip
    min_tokens: Annotated[
        int, Parameter(note="the answer has at least so many tokens", least=0, most=2**31 - 1, example=1)
    ] = 0
    ignore_eos: Annotated[bool, Parameter(note="the model's end token does not end the answer", example=True)] = False
    logprobs: Annotated[
        int | None,
        Parameter(
            note="alternatives reported for each token; 0 is the chosen token alone",
            least=0, most=20, example=2,
            names={
                "chat": ("logprobs", "top_logprobs"),
                "agui": ("logprobs", "top_logprobs"),
                "generate": ("top_logprobs",),
                "responses": ("top_logprobs",),
                "messages": (),
            },
        ),
    ] = None  # fmt: skip
    prompt_logprobs: Annotated[
        int | None,
        Parameter(note="the same for the prompt's tokens", least=0, most=20, example=1, names=_WITHOUT_PROMPT_SCORES),
    ] = None

    bad_words: Annotated[
        tuple[str, ...],
        Parameter(note="words that the answer must not contain, as tokens", items=256, example=("x",)),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...], Parameter(note="no other token is generated, not even the end token", example=(5,))
    ] = ()
    thinking_token_budget: Annotated[
        int | None,
        Parameter(
            note="maximum number of tokens of reasoning; the engine then ends it with the model's own words",
            least=0, most=2**31 - 1, example=5, names={"completions": ()},
        ),
    ] = None  # fmt: skip

    num_speculative_tokens: Annotated[
        int | None,
        Parameter(
            note="maximum number of tokens predicted speculatively in a step; 0 is none. It only changes the speed",
            least=0, most=32, neutral=0, example=8,
        ),
    ] = None  # fmt: skip

    def validate(self) -> None:
        """Raise OptionError for the first value outside its range."""
        for name, value in self._set():
            PARAMETERS[name].check(name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError("min_tokens", "must not be more than max_tokens.")

    def names_in_effect(self) -> frozenset[str]:
        """Return the names of the parameters whose value has an effect."""
        return frozenset(name for name, value in self._set() if value is not None and value != PARAMETERS[name].neutral)

    def _set(self) -> list[tuple[str, object]]:
        """Return names and values of the parameters that differ from their default. Most requests set two or three."""
        values = msgspec.structs.astuple(self)
        others = compress(zip(DEFAULTS.items(), values, strict=True), map(is_not, values, DEFAULTS.values()))
        return [(name, value) for (name, default), value in others if value != default]


def _declared(struct: type[msgspec.Struct]) -> dict[str, Parameter]:
    """Collect the table from the fields' annotations. Raises TypeError for a field without exactly one Parameter."""
    table: dict[str, Parameter] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        rows = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Parameter)]
        if len(rows) != 1:
            raise TypeError(f"{struct.__name__}.{name} must be annotated with one Parameter.")
        table[name] = rows[0]
    return table


PARAMETERS: Mapping[str, Parameter] = _declared(SamplingParams)
"""All sampling parameters by attribute name."""
TYPES: Mapping[str, object] = get_type_hints(SamplingParams)
"""Each parameter's type."""
DEFAULTS: Mapping[str, object] = msgspec.structs.asdict(SamplingParams())
"""Each parameter's default."""

FROM_MODEL: Mapping[str, object] = {name: row.neutral for name, row in PARAMETERS.items() if row.from_model}
"""Parameters that a model's generation_config may set, with their neutral values."""


def names_on(wire: Wire, name: str) -> tuple[str, ...]:
    """Return the names of a parameter's fields in a wire's requests."""
    return PARAMETERS[name].names.get(wire, (name,))


def json_schema(name: str) -> dict[str, object]:
    """Return a parameter's JSON Schema (2020-12): type, bounds, description and an example."""
    parameter = PARAMETERS[name]
    shape: dict[str, object] = dict(msgspec.json.schema(TYPES[name]))
    if parameter.items is not None:
        shape["maxItems"] = parameter.items
    bounds: dict[str, object] = {
        "exclusiveMinimum" if parameter.above else "minimum": parameter.least,
        "maximum": parameter.most,
    }
    bounds = {key: bound for key, bound in bounds.items() if bound is not None}
    if isinstance(DEFAULTS[name], dict):
        shape["additionalProperties"] = {"type": "number", **bounds}
    else:
        shape |= bounds
    return {**shape, "description": parameter.note, "examples": [msgspec.to_builtins(parameter.example, str_keys=True)]}
