"""What OpenAI's wires say about tokens: usage objects and log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from events.metadata import Alternative, Scored
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
    return sum(getattr(part, name) or 0 for part in usage)


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
