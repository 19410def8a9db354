"""An upstream's own names for the sampling parameters.

A dialect honours exactly the parameters that it has a Word for: the request is written from its words, and every other
parameter of the table is refused by name before anything is sent. So a dialect that was not extended for a new
parameter refuses it instead of ignoring it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from events.options import SamplingParams
from events.sampling import DEFAULTS


def same(value: Any) -> object:
    return value


class Word(msgspec.Struct, frozen=True):
    """name: the upstream's field. value: converts our value for it; if it returns None, the field is left out."""

    name: str
    value: Callable[[Any], object] = same


HERE = Word("")
"""For a parameter that is honoured on this side, so that it is not sent."""
IN_BODY = Word("")
"""For a parameter that the dialect's `body` writes itself, for example because it takes several fields."""
Words = Mapping[str, Word]
"""Attribute of SamplingParams → the upstream's word for it."""


def sampling_fields(words: Words, sampling: SamplingParams) -> dict[str, object]:
    """The upstream's fields for the sampling parameters that differ from their defaults."""
    fields: dict[str, object] = {}
    for name, word in words.items():
        value = getattr(sampling, name)
        if word.name and value is not None and value != DEFAULTS[name]:
            converted = word.value(value)
            if converted is not None:
                fields[word.name] = converted
    return fields


def folded(seed: int) -> int:
    """A seed of 64 bits folded to 63: vLLM and SGLang take signed numbers, and -1 means no seed to vLLM."""
    return seed & (2**63 - 1)


def spelled_ids(bias: Mapping[int, float]) -> dict[str, float]:
    """The bias with ids as strings, because the keys of JSON objects are strings."""
    return {str(number): value for number, value in bias.items()}
