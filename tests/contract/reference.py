"""What the bundled model says by itself: transformers' own `generate` and logits, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agent_server.http.server import BUNDLED
from agent_server.model_files import ModelFiles, load_model_files

CONTEXT = 4096
ASKED = ("Hello!", "What is the weather in Oslo?", "What can you do?", "Tell me about owls.", "12*7?")


@cache
def files() -> ModelFiles:
    return load_model_files(BUNDLED)


@cache
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32).eval()


def encode(text: str) -> tuple[int, ...]:
    return tuple(files().tokenizer.encode(text, add_special_tokens=False).ids)


def decode(ids: Sequence[int]) -> str:
    return str(files().tokenizer.decode(list(ids), skip_special_tokens=False))


def prompt(text: str = ASKED[0], header: str = "") -> tuple[int, ...]:
    """One user's message in the model's own template, and the beginning of an answer."""
    return encode(f"{header}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def endless() -> tuple[int, ...]:
    """A text that the model continues for as long as it may."""
    return encode("x " * 20)


def greedy(ids: Sequence[int], count: int, *, ignore_eos: bool = False, **options: Any) -> list[int]:
    """transformers' answer, the end of sequence included."""
    if ignore_eos:
        options |= {"min_new_tokens": count, "eos_token_id": None}
    return list(_greedy(tuple(ids), count, tuple(sorted(options.items()))))


@cache
def _greedy(ids: tuple[int, ...], count: int, options: tuple[tuple[str, Any], ...]) -> tuple[int, ...]:
    """Every engine is compared with the same answers, so each is computed once."""
    given = torch.tensor([ids])
    with torch.inference_mode():
        out = model().generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **dict(options),
        )
    return tuple(int(number) for number in out[0, len(ids) :])


def logprobs(ids: Sequence[int]) -> torch.Tensor:
    """Log probabilities of the token after `ids`, `[vocabulary]`."""
    with torch.inference_mode():
        return torch.log_softmax(model()(torch.tensor([list(ids)])).logits[0, -1].float(), -1)


def penalised(ids: Sequence[int], count: int, *, frequency: float, presence: float) -> list[int]:
    """Greedy decoding with OpenAI's two penalties on what was generated so far."""
    said: list[int] = []
    for _ in range(count):
        table = logprobs([*ids, *said]).clone()
        for number in set(said):
            table[number] -= presence + frequency * said.count(number)
        said.append(int(table.argmax()))
    return said


def without_end(ids: Sequence[int], count: int) -> list[int]:
    """transformers' answer where the end of sequence can never be chosen."""
    return greedy(ids, count, ignore_eos=True, suppress_tokens=files().stop_token_ids)
