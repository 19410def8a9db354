"""An upstream's own words for the sampling parameters.

A dialect honours exactly the parameters that it has a word for: the request is written from these words, and whatever
else the table of parameters holds is refused by name before anything is sent. A parameter that a dialect was never
taught is therefore refused by it, not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from events.options import SamplingParams
from events.sampling import DEFAULTS


def same(value: Any) -> Any:
    return value


class Word(msgspec.Struct, frozen=True):
    """name: the upstream's field. value: our value as it takes it; None leaves the field out."""

    name: str
    value: Callable[[Any], object] = same


HERE = Word("")
"""For a parameter that is honoured on this side of the connection, so that nothing of it is sent."""
IN_BODY = Word("")
"""For a parameter that the dialect writes into the request by itself, in more than one field."""
Words = Mapping[str, Word]
"""Attribute of SamplingParams → the upstream's word for it."""


def spoken(words: Words, sampling: SamplingParams) -> dict[str, object]:
    """The upstream's fields for all that the sampling asks for."""
    found: dict[str, object] = {}
    for name, word in words.items():
        value = getattr(sampling, name)
        if word.name and value is not None and value != DEFAULTS[name]:
            said = word.value(value)
            if said is not None:
                found[word.name] = said
    return found


def folded(seed: int) -> int:
    """A seed of 64 bits in the 63 that vLLM and SGLang take for one: -1 is none to vLLM."""
    return seed & (2**63 - 1)


def spelled_ids(bias: Mapping[int, float]) -> dict[str, float]:
    """JSON's objects have strings for keys."""
    return {str(number): value for number, value in bias.items()}
