"""An agent's settings for conversations that no longer fit its model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

CompactionMode = Literal["summarise", "drop"]
Summarise = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """How to keep a long conversation within the model's context.

    Attributes:
        mode: "summarise" replaces the oldest messages by a summary, "drop" leaves them out.
        at: The share of the context, from 0 to 1, above which a prompt is compacted.
        keep: The approximate share of the context that the latest messages take afterwards.
        summarise: Summarises a text; None for the model itself.
        summary_tokens: Maximum number of tokens of a summary by the model.
    """

    mode: CompactionMode = "summarise"
    at: float = 0.8
    keep: float = 0.4
    summarise: Summarise | None = None
    summary_tokens: int = 512

    def __post_init__(self) -> None:
        if not 0 < self.keep < self.at <= 1:
            raise ValueError(f"compaction: keep={self.keep} and at={self.at} must satisfy 0 < keep < at <= 1")
        if self.summary_tokens < 1:
            raise ValueError(f"compaction: summary_tokens must be at least 1, not {self.summary_tokens}")
