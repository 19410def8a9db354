"""Usage objects, timings and log probabilities on OpenAI's wires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adapters.answer import PromptNote
from adapters.sse import json_bytes
from events.metadata import Alternative, RunTimings, Scored
from events.vocabulary import TokenUsage


def combined_usage(runs: Sequence[Sequence[TokenUsage]], n: int | None = None) -> dict[str, object]:
    """Return OpenAI's `CompletionUsage` for `n` answers to each prompt (by default, all to one prompt). Each prompt is
    counted once."""
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


def usage_so_far(prompt: PromptNote | None, output_tokens: int) -> bytes:
    """Return the end of a frame with its answer's usage so far (`continuous_usage_stats`). prompt: None until it is
    rendered."""
    input_tokens = prompt.tokens if prompt is not None else 0
    usage = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    return b',"usage":' + json_bytes(usage) + b"}\n\n"


def _total(usage: Iterable[TokenUsage], name: str) -> int:
    total = 0
    for part in usage:
        total += getattr(part, name) or 0
    return total


def progress_object(value: Mapping[str, Any]) -> dict[str, object]:
    """Return a prompt's progress in llama.cpp's form."""
    counts = {"total": value["total"], "cache": value["cached"], "processed": value["processed"]}
    return {**counts, "time_ms": round(value["seconds"] * 1000, 3)}


def timings_object(timings: RunTimings, usage: Sequence[TokenUsage]) -> dict[str, object]:
    """Return llama.cpp's `timings` of an answer: milliseconds, and tokens per second. The prompt's time ends with the
    first token and excludes the time in the queue."""
    cached, input_tokens, output_tokens = (
        _total(usage, f"{kind}_tokens") for kind in ("cached_input", "input", "output")
    )
    total, first, queued = timings.total or 0.0, timings.first_token, timings.queued or 0.0
    prompt = max(0.0, (total if first is None else first) - queued)
    answer = 0.0 if first is None else max(0.0, total - first)
    return {
        "cache_n": cached,
        **_pace("prompt", input_tokens - cached, prompt),
        **_pace("predicted", output_tokens, answer),
    }


def _pace(name: str, tokens: int, seconds: float) -> dict[str, object]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": round(seconds * 1000, 3),
        f"{name}_per_token_ms": round(seconds * 1000 / tokens, 3) if tokens else None,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds else None,
    }


def prompt_logprobs(tokens: Iterable[Scored | None], top: int) -> list[dict[str, object] | None]:
    """Return vLLM's `prompt_logprobs`: for each token of the prompt, the token and the `top` most likely ones, by id.

    The first token has no score and is None. rank: 1 is the most likely; None for a token that is not among the `top`.
    """
    rows_by_token: list[dict[str, object] | None] = []
    for token in tokens:
        if token is None:
            rows_by_token.append(None)
            continue
        likeliest = (token[3] or ())[:top]
        ranks = {alternative[0]: rank for rank, alternative in enumerate(likeliest, 1)}
        rows: dict[int, Scored | Alternative] = {row[0]: row for row in likeliest}
        rows[token[0]] = token
        rows_by_token.append(
            {
                str(number): {"logprob": row[2], "rank": ranks.get(number), "decoded_token": row[1]}
                for number, row in rows.items()
            }
        )
    return rows_by_token


def chat_logprobs(tokens: Iterable[Scored], top: int, as_ids: bool = False) -> list[dict[str, object]]:
    """Return `ChatCompletionTokenLogprob` objects; tokens without a log probability are omitted. as_ids: see
    `token_name`."""
    return [
        {
            **_logprob(token, as_ids),
            "top_logprobs": [_logprob(alternative, as_ids) for alternative in (token[3] or ())[:top]],
        }
        for token in tokens
        if token[2] is not None
    ]


def _logprob(token: Scored | Alternative, as_ids: bool) -> dict[str, object]:
    text: str = token[1]
    name = token_name(token[0]) if as_ids else text
    return {"token": name, "logprob": token[2], "bytes": list(text.encode("utf-8", "replace"))}


def token_name(id: int) -> str:
    """Return vLLM's name for a token under `return_tokens_as_token_ids`, since several tokens may have the same
    text."""
    return f"token_id:{id}"


def legacy_logprobs(
    tokens: Sequence[Scored | None],
    top: int,
    offset: int = 0,
    unscored: tuple[int | None, str] = (None, ""),
    *,
    as_ids: bool = False,
) -> dict[str, object]:
    """Return log probabilities in the form of Completions.

    tokens: None for a prompt's first token, which has no score. offset: the position of the first token's text.
    unscored: the id and the text of the token that is None. as_ids: see `token_name`.
    """
    ids_and_texts = [unscored if token is None else (token[0], token[1]) for token in tokens]
    texts = [text for _, text in ids_and_texts]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    alternatives: list[dict[str, float | None] | None] = []  # by text, with the chosen token first
    for token in tokens:
        if token is None:
            alternatives.append(None)
            continue
        scores: dict[str, float | None] = {_token_label(token[0], token[1], as_ids): token[2]}
        scores |= {_token_label(row[0], row[1], as_ids): row[2] for row in (token[3] or ())[:top]}
        alternatives.append(scores)
    return {
        "tokens": [_token_label(id, text, as_ids) for id, text in ids_and_texts],
        "token_logprobs": [None if token is None else token[2] for token in tokens],
        "top_logprobs": alternatives,
        "text_offset": offsets,
    }


def _token_label(id: int | None, text: str, as_ids: bool) -> str:
    return token_name(id) if as_ids and id is not None else text
