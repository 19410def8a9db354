"""What constrained decoding costs: compiling tools for the first and the second time, and each token.

    python benchmarks/constrained.py [--tokens 40] [--rounds 1] [--vocabularies 32000 150000] [--rows 1 8 32]

A token's cost is measured in the engine itself: two engines around the same model, the same prompts, sampled at
temperature 1, one engine without a grammar and one with it, a step of each in turns, and the median of the pairs'
differences. Ten tools that must be called, ten tools and the text in front of a call, and a string that has no end,
whose masks allow nearly everything. The model is a Llama with random weights: 8 layers of width 512 and its
embeddings, in one thread. A step holds all that a server's step holds: scheduling, forward, masks, sampling,
matching, detokenising. Real models are larger, which makes the share smaller. Masks are filled in a thread beside the
forward; "CPU" is the time of all threads, as on a single core. Forced tokens are not run ahead of, so that both take
as many steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from agent_server.engine_protocol.protocol import Constraint, GenerationRequest
from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.generation.core.step import Core
from agent_server.generation.loading.loader import assemble
from agent_server.generation.scheduling.messages import EngineConfig, Submit
from agent_server.model_files import ModelFiles
from events.formats import registry
from events.formats.output_format import markers
from events.grammar import Function, plan
from events.options import SamplingParams, ToolChoice

END = "<|im_end|>"
WIDTH, LAYERS = 512, 8
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


def cores_for(tokenizer: Tokenizer, rows: int) -> tuple[Core, Core]:
    """Two engines around the same random model with this vocabulary."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=size, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True, max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval().requires_grad_(False)
    files = ModelFiles(tokenizer=tokenizer, stop_token_ids=(tokenizer.token_to_id(END),))
    settings = EngineConfig(model="random", threads=1, max_batch=rows, kv_cache_bytes=256 * 2**20, run_ahead=False)
    models = model, deepcopy(model)
    first, second = (assemble(settings, each, files, torch.device("cpu"), None)[0] for each in models)
    return first, second


def submit(core: Core, first: int, rows: int, tokens: int, bound: Constraint | None) -> None:
    for number in range(first, first + rows):
        sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=tokens, ignore_eos=True)
        prompt = tuple(Random(number % rows).choices(range(200), k=8))
        request = GenerationRequest(
            request_id=str(number), prompt_token_ids=prompt, sampling=sampling, constraint=bound
        )
        core.inbox.put(Submit(number, request))


def timed(core: Core, rows: int) -> tuple[float, float] | None:
    """Milliseconds of a step, by wall time and by all threads' CPU time; None if it was not one that decodes all the
    rows."""
    decoding = sum(not (s.blocked or s.prefilling) for s in core.scheduler.running)
    began, spent = time.perf_counter(), time.process_time()
    core.step()
    taken = (time.perf_counter() - began) * 1000, (time.process_time() - spent) * 1000
    return taken if decoding == rows else None


def per_token(
    cores: tuple[Core, Core], bound: Constraint, rows: int, tokens: int, rounds: int
) -> list[tuple[float, float]]:
    """Milliseconds of a step without the grammar, and what it adds: medians by wall time and by CPU time. Both engines
    step in turns, so that what else the machine does falls on both."""
    free: list[tuple[float, float]] = []
    added: list[tuple[float, float]] = []
    for number in range(rounds):
        for core, constraint in zip(cores, (None, bound), strict=True):
            submit(core, (number + 1) * 1000, rows, tokens, constraint)
        turn = 0
        while not all(core.idle and core.inbox.empty() for core in cores):
            turn += 1
            order = (0, 1) if turn % 2 else (1, 0)
            pair = dict(zip(order, [timed(cores[which], rows) for which in order], strict=True))
            if (without := pair[0]) is not None and (with_it := pair[1]) is not None:
                free.append(without)
                added.append((with_it[0] - without[0], with_it[1] - without[1]))
    middle = [[statistics.median(column) for column in zip(*side, strict=True)] for side in (free, added)]
    return list(zip(*middle, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 150_000])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    given = parser.parse_args()
    for size in given.vocabularies:
        tokenizer = vocabulary(size)
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        began = time.perf_counter()
        compiler = Compiler(GrammarBackend(tokenizer, size, [tokenizer.token_to_id(END)]))
        print(f"\nvocabulary {size}: set up in {time.perf_counter() - began:.2f} s")
        for count in (1, 10, 100):
            wanted = constraint(tokenizer, realistic_tools(count), "auto")
            _, first = compiled(compiler, wanted)
            _, second = compiled(compiler, wanted)
            print(f"  {count:3} tools: first use {first * 1000:7.1f} ms, second use {second * 1000:6.2f} ms")
        compiler.close()
        cores = cores_for(tokenizer, max(given.rows))
        print("  output                rows   time   without   added (ms)   share of a step", flush=True)
        for name, bound in _bounds(tokenizer).items():
            for rows in given.rows:
                measured = per_token(cores, bound, rows, given.tokens, given.rounds)
                for clock, (free, more) in zip(("wall", "CPU"), measured, strict=True):
                    print(f"  {name:20} {rows:5} {clock:>6} {free:9.3f} {more:12.3f} {more / free:14.1%}", flush=True)


def _bounds(tokenizer: Tokenizer) -> dict[str, Constraint]:
    tools = realistic_tools(10)
    return {
        "calls": constraint(tokenizer, tools, "required"),
        "text before calls": constraint(tokenizer, tools, "auto"),
        "within a string": Constraint(kind="regex", value=r'"[^"\\\x00-\x1f]*'),
    }


if __name__ == "__main__":
    main()
