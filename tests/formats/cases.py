"""The families' own sample outputs, by the format's name (`events.formats.families`)."""

from __future__ import annotations

from events.formats.registry import SAMPLES as CASES
from events.formats.samples import Sample as Case

__all__ = ["CASES", "Case"]
