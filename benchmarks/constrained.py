"""What constrained decoding costs: compiling tools for the first and the second time, and each token.

    python -m benchmarks.constrained [--tokens 60] [--device cpu]

A token's cost is that of masks and matching, for batches of 1, 8 and 32 rows over vocabularies of 32k and 150k tokens;
the peer is the same loop without a grammar, taken in turns with it. The loop is the least that a model does for a
token: the projection onto the vocabulary (from a width of 896, a model of half a billion parameters) and the sampler.
A whole forward pass takes many times longer, so the share given is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agent_server.engine.protocol import Constraint
from agent_server.generation.constraint import Compiler
from agent_server.generation.grammar import GrammarBackend
from agent_server.generation.sampler import Masks, Sampler, Settings
from events.formats import registry
from events.formats.output_format import markers
from events.grammar import Function, plan
from events.options import SamplingParams, ToolChoice

END = "<|im_end|>"
WIDTH = 896
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [
    '{"',
    '": "',
    '", "',
    '"}',
    '": ',
    "}}",
    ", ",
    ": ",
    '"]',
    '":',
    '{"name',
    "arguments",
    "<",
    "</",
    ">\n",
    "\n\n",
]


def vocabulary(size: int) -> Tokenizer:
    """A byte-level vocabulary of `size` tokens: bytes, JSON's pieces, words with and without a leading space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    random, words = Random(7), dict.fromkeys([*alphabet, *(p.replace(" ", "Ġ").replace("\n", "Ċ") for p in PIECES)])
    while len(words) < size - 40:
        word = "".join(random.choices(LETTERS, weights=range(26, 0, -1), k=random.randint(2, 9)))
        words[
            random.choice(("", "Ġ")) + random.choice((word, word.capitalize(), word + str(random.randint(0, 99))))
        ] = None
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict.fromkeys([END, *(m for m in markers(registry.named("hermes")) if m.startswith("<"))])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    return tokenizer


def realistic_tools(count: int) -> list[Function]:
    """Tools of nine parameters each, as function-calling benchmarks have them."""
    return [Function(f"tool_{number}_{LETTERS[number % 26]}", _parameters(Random(number))) for number in range(count)]


def _parameters(random: Random) -> dict[str, Any]:
    text = {"type": "string", "description": "Some words on it. " * 5, "maxLength": 100}
    place = {"lat": {"type": "number", "minimum": -90, "maximum": 90}, "lon": {"type": "number"}}
    inner = {"type": "object", "properties": place, "required": ["lat", "lon"], "additionalProperties": False}
    kinds: list[dict[str, Any]] = [
        text, {"type": "string", "enum": ["low", "middle", "high"]}, {"type": "integer", "minimum": 0, "maximum": 500},
        {"type": "boolean"}, {"type": "array", "items": {"type": "string"}, "maxItems": 10}, inner,
        {"type": "string", "format": "date-time"}, {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "number"},
    ]  # fmt: skip
    names = [f"{random.choice(('first', 'last', 'max', 'for', 'by'))}_{LETTERS[i]}" for i in range(len(kinds))]
    properties = dict(zip(names, kinds, strict=True))
    return {"type": "object", "properties": properties, "required": names[:4], "additionalProperties": False}


def constraint(tokenizer: Tokenizer, tools: Sequence[Function], mode: str) -> Constraint:
    ids = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    planned = plan(
        registry.named("hermes"), functions=tools, choice=ToolChoice(mode), parallel=True, response_format=None,  # type: ignore[arg-type]
        stage="content", marker_ids=ids,
    )  # fmt: skip
    return Constraint(kind="structural_tag", value=planned.tag)


def compiled(compiler: Compiler, wanted: Constraint) -> tuple[Any, float]:
    """The grammar, and the seconds until it was there."""
    from concurrent.futures import Future

    ready: Future[Any] = Future()
    began = time.perf_counter()
    compiler.compile(wanted, lambda grammar, error: ready.set_result((grammar, error)))
    grammar, error = ready.result()
    assert error is None, error
    grammar.matcher()
    return grammar, time.perf_counter() - began


def call_text(random: Random, tools: Sequence[Function]) -> str:
    """A call of some tool as a model writes it, the arguments that are required and text among them."""
    tool = random.choice(tools)
    names = list(tool.schema["properties"])
    words = " ".join("".join(random.choices(LETTERS, k=6)) for _ in range(12))
    arguments = {names[0]: words, names[1]: "middle", names[2]: 42, names[3]: True}
    call = json.dumps({"name": tool.name, "arguments": arguments})
    return f"I will look that up for you, one moment please.<tool_call>\n{call}\n</tool_call>"


def per_token(
    tokenizer: Tokenizer, backend: GrammarBackend, grammar: Any, tools: Sequence[Function], rows: int, given: Any
) -> tuple[float, float]:
    """Milliseconds of a step without and with the grammar, taken in turns; rows stand at different places of calls."""
    size, device, tokens = tokenizer.get_vocab_size(with_added_tokens=True), given.device, given.tokens
    sampler = Sampler(rows, size, torch.device(device))
    compiler = Compiler(backend)
    for row in range(rows):
        sampler.set(row, row, Settings(SamplingParams(temperature=1.0), row), [], [])
    scripts = [tokenizer.encode(call_text(Random(row), tools), add_special_tokens=False).ids for row in range(rows)]
    matchers = [grammar.matcher() for _ in range(rows)]
    places = [Random(row).randrange(len(scripts[row]) // 2) for row in range(rows)]
    for row, place in enumerate(places):
        assert all(matchers[row].accept(token) for token in scripts[row][:place])
    hidden = torch.randn(rows, WIDTH, device=device)
    weight = torch.randn(size, WIDTH, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    hidden = hidden.to(weight.dtype)
    project = lambda: torch.nn.functional.linear(hidden, weight).float()  # noqa: E731
    free: list[float] = []
    bound: list[float] = []
    ends = [frozenset(backend.ends)] * rows
    everyone = list(range(rows))
    for position in range(tokens):
        free.append(_timed(lambda position=position: sampler.sample(project(), everyone, [position] * rows), device))

        def step(position: int = position) -> None:
            bits = torch.full((rows, -(-size // 32)), -1, dtype=torch.int32)
            compiler.fill(matchers, ends, bits)
            sampler.sample(project(), everyone, [position] * rows, Masks(bits, everyone))
            for row in everyone:
                if places[row] >= len(scripts[row]):
                    matchers[row], places[row] = grammar.matcher(), 0
                assert matchers[row].accept(scripts[row][places[row]])
                places[row] += 1

        bound.append(_timed(step, device))
    compiler.close()
    return statistics.median(free) * 1000, statistics.median(bound) * 1000


def _timed(work: Any, device: str) -> float:
    began = time.perf_counter()
    sampled = work()
    if device == "cuda":
        torch.cuda.synchronize()
    del sampled
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1 if given.device == "cpu" else 8)
    for size in (32_000, 150_000):
        tokenizer = vocabulary(size)
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        began = time.perf_counter()
        backend = GrammarBackend(tokenizer, size, [tokenizer.token_to_id(END)])
        print(f"\nvocabulary {size}: set up in {time.perf_counter() - began:.2f} s")
        compiler = Compiler(backend)
        for count in (1, 10, 100):
            wanted = constraint(tokenizer, realistic_tools(count), "auto")
            _, first = compiled(compiler, wanted)
            _, second = compiled(compiler, wanted)
            print(f"  {count:3} tools: first use {first * 1000:7.1f} ms, second use {second * 1000:6.2f} ms")
        tools = realistic_tools(10)
        grammar, _ = compiled(compiler, constraint(tokenizer, tools, "auto"))
        print("  rows   without      with   added (ms)   share of a step")
        for rows in (1, 8, 32):
            free, bound = per_token(tokenizer, backend, grammar, tools, rows, given)
            share = (bound - free) / free
            print(f"  {rows:4} {free:9.3f} {bound:9.3f} {bound - free:12.3f} {share:14.1%}")
        compiler.close()


if __name__ == "__main__":
    main()
