"""The generation core beside transformers' own two ways to generate, in one run, on the CPU.

    python benchmarks/engine.py [--model FOLDER] [--streams 1 8 32 64] [--prompt 64] [--new 128] [--rounds 2]
        [--quantize int8]

For each number of streams: our core, transformers' continuous batching with streaming, and `generate` on a padded
batch, all greedy, all with the same prompts and one thread, taken in turns. Continuous batching is started once,
outside the time that is measured, with a cache of the size that is needed: by default it fills most of the machine's
memory. Tokens per second of wall time and per second of CPU time, the best round of each (on a machine with other work
the second is the one to compare). Then what a step costs beyond `forward`, per row, greedy and sampled, and how much
sooner a second turn over a long prompt starts than the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from agent_server.engine_protocol.protocol import Delta, GenerationRequest
from agent_server.generation.core.step import Core
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig, Submit
from events.options import SamplingParams

BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"
PAGE = 64
"""Tokens in a page of continuous batching: what was fastest for it here."""
Way = Callable[[list[list[int]]], int]
"""Prompts → the number of tokens generated for them."""
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "logprobs": 0}


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = EngineConfig(model=options.model, threads=1, max_batch=max(options.streams), quantize=options.quantize)
    core, info = load(config, lambda status: None)
    if core.record is not None:  # a server does it when it first has no work
        core.record()
    peers = [AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval() for _ in range(2)]
    vocab = info.vocab_size
    weights = options.quantize or info.details["dtype"]
    print(f"{options.model}: {options.prompt} tokens in, {options.new} out, one thread, ours {weights}, theirs float32")
    print(f"{'streams':>8} {'':>12} {'ours':>9} {'continuous':>11} {'generate':>9} {'x cont.':>8} {'x gen.':>7}")
    for count in options.streams:
        with continuous(peers[0], count, options.prompt + options.new) as batching:
            ways = {
                "ours": lambda prompts: ours(core, prompts, options.new, GREEDY),
                "continuous": lambda prompts, batching=batching: batching(prompts, options.new),
                "generate": lambda prompts: padded(peers[1], prompts, options.new),
            }
            report(count, measure(ways, count, options, vocab))
    count = max(options.streams)
    for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        whole, forward = overhead(core, random_prompts(count, options.prompt, vocab, 99), options.new, sampling)
        print(f"beyond forward, {name}, {count} rows: {whole - forward:.0f} us a row (forward {forward:.0f} us)")
    turns(core, min(options.long, info.context_length - 64), vocab)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(BUNDLED))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument(
        "--quantize", choices=["", "int8", "int4"], default="", help="our weights; the peers' stay as they are"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--long", type=int, default=4000)
    return parser.parse_args()


def random_prompts(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(20, vocab, (count, length), generator=generator).tolist()


def measure(
    ways: dict[str, Way], count: int, options: argparse.Namespace, vocab: int
) -> dict[str, tuple[float, float]]:
    """Tokens per second of wall time and of CPU time, the best of the rounds; every round has fresh prompts."""
    best = dict.fromkeys(ways, (0.0, 0.0))
    for way in ways.values():
        way(random_prompts(count, options.prompt, vocab, 1000))
    for seed in range(options.rounds):
        prompts = random_prompts(count, options.prompt, vocab, seed)
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            tokens = way(prompts)
            found = tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)
            best[name] = max(best[name][0], found[0]), max(best[name][1], found[1])
    return best


def report(count: int, found: dict[str, tuple[float, float]]) -> None:
    for index, unit in enumerate(("tok/s", "tok/CPU-s")):
        own, continuous_, generate_ = (found[name][index] for name in ("ours", "continuous", "generate"))
        ratios = f"{own / continuous_:>8.2f} {own / generate_:>7.2f}"
        print(f"{count:>8} {unit:>12} {own:>9.0f} {continuous_:>11.0f} {generate_:>9.0f} {ratios}", flush=True)


def submit(core: Core, number: int, prompt: list[int], new: int, sampling: dict[str, float]) -> None:
    params = SamplingParams(max_tokens=new, ignore_eos=True, seed=number, **sampling)
    core.inbox.put(
        Submit(number, GenerationRequest(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=params))
    )


def ours(core: Core, prompts: list[list[int]], new: int, sampling: dict[str, float]) -> int:
    """Everything that a client gets: text, ids, endings. Returns the number of tokens."""
    for number, prompt in enumerate(prompts):
        submit(core, number, prompt, new, sampling)
    count = 0
    while True:
        count += sum(len(item.tokens) for _, item in core.step() if isinstance(item, Delta))
        if core.idle:
            return count


@contextmanager
def continuous(
    model: AutoModelForCausalLM, count: int, length: int, *, page: int = PAGE, budget: int = 512
) -> Iterator[Callable[..., int]]:
    """transformers' continuous batching, streaming every token, as a server would use it; yields what answers
    prompts. Room for `count` sequences of `length` tokens, and the same budget of tokens for a step as ours."""
    settings = GenerationConfig(max_new_tokens=length, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = count * (-(-length // page) + 1) + 16
    named = "page_size" if "page_size" in signature(ContinuousBatchingConfig).parameters else "block_size"  # 5.17
    shape = ContinuousBatchingConfig(**{named: page}, num_blocks=pages, max_batch_tokens=budget)
    manager = model.init_continuous_batching(generation_config=settings, continuous_batching_config=shape)
    manager.start()

    def answer(prompts: list[list[int]], new: int) -> int:
        for prompt in prompts:
            manager.add_request(prompt, max_new_tokens=new, streaming=True)
        done = tokens = 0
        while done < len(prompts):
            result = manager.get_result(timeout=60)
            if result is not None and result.is_finished():
                done += 1
                tokens += len(result.generated_tokens)
        return tokens

    try:
        yield answer
    finally:
        manager.stop(block=True)


@torch.inference_mode()
def padded(model: AutoModelForCausalLM, prompts: list[list[int]], new: int) -> int:
    ids = torch.tensor(prompts)
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    model.set_attn_implementation("sdpa")
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
    return out.shape[0] * (out.shape[1] - ids.shape[1])


def overhead(core: Core, prompts: list[list[int]], new: int, sampling: dict[str, float]) -> tuple[float, float]:
    """Microseconds of CPU time per row of a decoding step, and how many of them the model takes; medians."""
    forward = core.runner._model_forward
    spent = [0.0]

    def timed(*arguments: object) -> torch.Tensor:
        start = time.thread_time()
        out = forward(*arguments)
        spent[0] += time.thread_time() - start
        return out

    core.runner._model_forward = timed
    for number, prompt in enumerate(prompts):
        submit(core, number, prompt, new, sampling)
    wholes, forwards = [], []
    while True:
        spent[0], start = 0.0, time.thread_time()
        core.step()
        wholes.append((time.thread_time() - start) / len(prompts) * 1e6)
        forwards.append(spent[0] / len(prompts) * 1e6)
        if core.idle:
            break
    core.runner._model_forward = forward
    middle = slice(len(wholes) // 4, -2)
    return statistics.median(wholes[middle]), statistics.median(forwards[middle])


def turns(core: Core, length: int, vocab: int) -> None:
    """Seconds to the first token of a prompt, and of the same prompt with a little more."""

    def first(prompt: list[int]) -> float:
        start = time.thread_time()
        ours(core, [prompt], 1, GREEDY)
        return time.thread_time() - start

    colds, warms = [], []
    for seed in range(3):
        prompt = random_prompts(1, length, vocab, seed + 500)[0]
        colds.append(first(prompt))
        warms.append(first([*prompt, 21, 22, 23, 24]))
    cold, warm = statistics.median(colds), statistics.median(warms)
    print(f"a prompt of {length} tokens: {cold * 1e3:.0f} ms cold, {warm * 1e3:.1f} ms warm, {cold / warm:.0f} times")


if __name__ == "__main__":
    main()
