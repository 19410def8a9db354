"""What keeping keys and values in another precision costs a model's answers.

    python -m benchmarks.kept_dtypes [--model FOLDER] [--share 0.25] [--kept float32 fp8]

The bundled model's held-out dialogues (`training/demo_model/evaluate.py`), the sums in float32, over pages, with keys
and values in each of the precisions. For each: the perplexity of the expected answers, token by token; how far log
probabilities are from those of the first; and how many greedy answers are the first's, token by token. Nothing is
timed.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from agent_server.engine_protocol.protocol import Delta, Finished, GenerationRequest
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.config import EngineConfig
from agent_server.generation.scheduling.messages import Failed, Submit
from events.options import SamplingParams
from training.demo_model.evaluate import COUNTS, held_out_dialogues

BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"
LONGEST = 1500
NEW = 120
Answers = tuple[list[tuple[int, ...]], list[float]]
"""Greedy ids for each prompt, and the log probability of every token of the expected answers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(BUNDLED))
    parser.add_argument("--share", type=float, default=0.25, help="of the dialogues")
    parser.add_argument("--kept", nargs="+", default=["float32", "fp8"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    asked = dialogues(options.model, options.share)
    first: Answers | None = None
    for kept in options.kept:
        found = answered(options.model, kept, asked)
        first = first or found
        off = [abs(a - b) for a, b in zip(first[1], found[1], strict=True)]
        same = sum(a == b for a, b in zip(first[0], found[0], strict=True))
        perplexity = math.exp(-sum(found[1]) / len(found[1]))
        print(
            f"{kept:>9}: perplexity {perplexity:.4f} of {len(off)} tokens, log probabilities off by "
            f"{sum(off) / len(off):.4f} on average, {max(off):.2f} at most; {same} of {len(asked)} answers the same",
            flush=True,
        )


def dialogues(model: str, share: float) -> list[tuple[list[int], list[int]]]:
    """Ids of each prompt, and of the prompt with its expected answer."""
    template, tokenizer = AutoTokenizer.from_pretrained(model), Tokenizer.from_file(f"{model}/tokenizer.json")
    counts = {kind: max(1, round(count * share)) for kind, count in COUNTS.items()}
    found = []
    for _, dialogue in held_out_dialogues(counts, "kept"):
        named = {"tools": list(dialogue.tools) or None, "tokenize": False, "enable_thinking": dialogue.thinking}
        prompt = template.apply_chat_template(dialogue.messages[:-1], add_generation_prompt=True, **named)
        whole = template.apply_chat_template(dialogue.messages, **named)
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in (prompt, whole)]
        if len(ids[1]) < LONGEST:
            found.append((ids[0], ids[1]))
    return found


def answered(model: str, kept: str, asked: list[tuple[list[int], list[int]]]) -> Answers:
    config = EngineConfig(
        model=model, device="cpu", dtype="float32", kv_cache_dtype=kept, memory="paged", threads=1, max_batch=16,
        max_queued=10**6, kv_cache_bytes=2**28,
    )  # fmt: skip
    core, _ = load(config, lambda status: None, lambda files, size: None)
    for number, (prompt, whole) in enumerate(asked):
        greedy = SamplingParams(temperature=0.0, max_tokens=NEW)
        scoring = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        for at, (ids, sampling) in enumerate(((prompt, greedy), (whole, scoring))):
            request = GenerationRequest(
                request_id=f"{number}-{at}", prompt_token_ids=tuple(ids), sampling=sampling, tenant=str(at)
            )
            core.inbox.put(Submit(2 * number + at, request))
    ids: dict[int, list[int]] = {number: [] for number in range(2 * len(asked))}
    scores: dict[int, list[float]] = {}
    while not (core.idle and core.inbox.empty()):
        for number, item in core.step():
            if isinstance(item, Failed):
                raise RuntimeError(item.message)
            if isinstance(item, Delta):
                ids[number] += [token.id for token in item.tokens]
            if isinstance(item, Finished) and item.prompt_logprobs:
                answer = item.prompt_logprobs[len(asked[number // 2][0]) :]
                scores[number] = [token.logprob for token in answer if token and token.logprob is not None]
    greedily = [tuple(ids[2 * number]) for number in range(len(asked))]
    return greedily, [value for number in sorted(scores) for value in scores[number]]


if __name__ == "__main__":
    main()
