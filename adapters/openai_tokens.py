"""What OpenAI's wires say about tokens: usage objects and log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from events.metadata import Alternative, RunTimings, Scored
from events.vocabulary import TokenUsage


def combined_usage(runs: Sequence[Sequence[TokenUsage]], n: int | None = None) -> dict[str, object]:
    """OpenAI's `CompletionUsage` for `n` answers to each prompt (all to one by default): a prompt counts once, each
    answer in full."""
    prompts = runs[:: n or len(runs) or 1]
    prompt = sum(_total(run, "input_tokens") for run in prompts)
    completion = sum(_total(run, "output_tokens") for run in runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(_total(run, "cached_input_tokens") for run in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(_total(run, "reasoning_tokens") for run in runs)},
    }


def _total(usage: Iterable[TokenUsage], name: str) -> int:
    total = 0
    for part in usage:
        total += getattr(part, name) or 0
    return total


def progress_object(value: Mapping[str, Any]) -> dict[str, object]:
    """How far a prompt is, in llama.cpp's form."""
    said = {"total": value["total"], "cache": value["cached"], "processed": value["processed"]}
    return {**said, "time_ms": round(value["seconds"] * 1000, 3)}


def timings_object(timings: RunTimings, usage: Sequence[TokenUsage]) -> dict[str, object]:
    """llama.cpp's `timings` of an answer: milliseconds, and tokens a second. The prompt's time ends with the first
    token, whose time in the queue is not part of it."""
    cached, read, written = (_total(usage, f"{kind}_tokens") for kind in ("cached_input", "input", "output"))
    total, first, queued = timings.total or 0.0, timings.first_token, timings.queued or 0.0
    prompt = max(0.0, (total if first is None else first) - queued)
    answer = 0.0 if first is None else max(0.0, total - first)
    return {
        "cache_n": cached,
        **_pace("prompt", read - cached, prompt),
        **_pace("predicted", written, answer),
    }


def _pace(name: str, tokens: int, seconds: float) -> dict[str, object]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": round(seconds * 1000, 3),
        f"{name}_per_token_ms": round(seconds * 1000 / tokens, 3) if tokens else None,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds else None,
    }


def prompt_logprobs(tokens: Iterable[Scored | None], top: int) -> list[dict[str, object] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt, by id, the token and the `top` most likely ones; None for
    the first, which nothing precedes. rank: 1 is the most likely; None for a token that is not among those."""
    return [None if token is None else _scored(token, top) for token in tokens]


def _scored(token: Scored, top: int) -> dict[str, object]:
    likeliest = list((token[3] or ())[:top])
    ranks = {alternative[0]: rank for rank, alternative in enumerate(likeliest, 1)}
    rows: dict[int, Scored | Alternative] = {row[0]: row for row in likeliest}
    rows[token[0]] = token
    return {
        str(number): {"logprob": row[2], "rank": ranks.get(number), "decoded_token": row[1]}
        for number, row in rows.items()
    }


def chat_logprobs(tokens: Iterable[Scored], top: int) -> list[dict[str, object]]:
    """`ChatCompletionTokenLogprob` objects; a token without a log probability has none to show and is left out."""
    return [
        {**_logprob(token), "top_logprobs": [_logprob(alternative) for alternative in (token[3] or ())[:top]]}
        for token in tokens
        if token[2] is not None
    ]


def _logprob(token: Scored | Alternative) -> dict[str, object]:
    text: str = token[1]
    return {"token": text, "logprob": token[2], "bytes": list(text.encode("utf-8", "replace"))}
