"""Counters and gauges of the engine, by vLLM's names without their prefix."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """What only grows. Times in seconds."""

    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    forced_tokens_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    iterations_total: int = 0
    spec_decode_num_drafts_total: int = 0
    spec_decode_num_draft_tokens_total: int = 0
    spec_decode_num_accepted_tokens_total: int = 0
    time_to_first_token_seconds_sum: float = 0.0
    time_to_first_token_seconds_count: int = 0
    time_per_output_token_seconds_sum: float = 0.0
    time_per_output_token_seconds_count: int = 0
    request_queue_time_seconds_sum: float = 0.0
    request_queue_time_seconds_count: int = 0

    def values(self) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}
