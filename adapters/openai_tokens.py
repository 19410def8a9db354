"""What OpenAI's wires say about tokens: usage objects and log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adapters.answer import PromptNote
from adapters.sse import json_bytes
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


def usage_so_far(prompt: PromptNote | None, written: int) -> bytes:
    """The end of a frame that says what its answer has used until then (`continuous_usage_stats`). prompt: None before
    it is known."""
    read = prompt.tokens if prompt is not None else 0
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return b',"usage":' + json_bytes(usage) + b"}\n\n"


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


def chat_logprobs(tokens: Iterable[Scored], top: int, as_ids: bool = False) -> list[dict[str, object]]:
    """`ChatCompletionTokenLogprob` objects; a token without a log probability has none to show and is left out. as_ids:
    see `token_name`."""
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
    shown = token_name(token[0]) if as_ids else text
    return {"token": shown, "logprob": token[2], "bytes": list(text.encode("utf-8", "replace"))}


def token_name(id: int) -> str:
    """vLLM's name for a token where `return_tokens_as_token_ids` asks for ids: several tokens may have one text."""
    return f"token_id:{id}"


def legacy_logprobs(
    tokens: Sequence[Scored | None],
    top: int,
    offset: int = 0,
    unscored: tuple[int | None, str] = (None, ""),
    *,
    as_ids: bool = False,
) -> dict[str, object]:
    """Completions' own form. `offset` is where the first token's text begins; a prompt's first token, which nothing
    precedes, has no score: it is None, and `unscored` are its id and text. as_ids: see `token_name`."""
    known = [unscored if token is None else (token[0], token[1]) for token in tokens]
    texts = [text for _, text in known]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": [_shown(id, text, as_ids) for id, text in known],
        "token_logprobs": [None if token is None else token[2] for token in tokens],
        "top_logprobs": [None if token is None else _alternatives(token, top, as_ids) for token in tokens],
        "text_offset": offsets,
    }


def _alternatives(token: Scored, top: int, as_ids: bool) -> dict[str, float | None]:
    """Alternatives by their text, the chosen token always among them, as the first."""
    rows: list[tuple[int, str, float | None]] = [(row[0], row[1], row[2]) for row in (token[3] or ())[:top]]
    return {_shown(id, text, as_ids): logprob for id, text, logprob in [(token[0], token[1], token[2]), *rows]}


def _shown(id: int | None, text: str, as_ids: bool) -> str:
    return token_name(id) if as_ids and id is not None else text
