"""The generation core on a GPU, with random weights in a real model's shape, beside transformers and the hardware.

    python benchmarks/engine_gpu.py [--shape qwen3-0.6b] [--streams 1 16 64 256] [--prompt 512] [--new 128]

One shape a command, and no longer than --seconds: what does not fit any more is named, not run. bfloat16. First what
the card does by itself, measured in the same run: a copy (bytes read and written per second) and a large product of
matrices (operations per second). Then prefill in tokens per second, with its share of that product's rate. Then, for
each number of streams: tokens per second of our core and of transformers' continuous batching, over the same weights,
from the first prompt to the last token; and of a step in which every stream decodes: its tokens per second, the
bandwidth limit (the bytes of weights and of keys and values that it must read, at the copy's rate), the ratio, and the
share of the step in which the host does not wait for the device. Before these: how much longer steps of 16 that decode
last while a long prompt is computed beside them, and how many of --check greedy tokens are the same by graphs and
without.

`--device cpu --shape tiny` runs all of it without a GPU, to see that it works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from engine import GREEDY, continuous, random_prompts, submit
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_server.engine_protocol.protocol import Delta, GenerationRequest
from agent_server.generation.core.step import Core
from agent_server.generation.device import Arrival, indexed
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.loader import assemble
from agent_server.generation.scheduling.messages import Cancel, EngineConfig, RequestFailed, Submit
from agent_server.model_files import ModelFiles
from events.options import SamplingParams

SHARED = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960}
SHAPES = {
    "qwen3-0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True, **SHARED,
    },
    "qwen3-8b": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False, **SHARED,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "tie_word_embeddings": True, **SHARED, "head_dim": 16, "num_key_value_heads": 2, "vocab_size": 2000,
    },
}  # fmt: skip
BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"
PAGE = 256
TOGETHER = 16
"""Sequences of what is measured beside the streams: a bucket of graphs."""


@dataclass
class Card:
    """What the device does by itself: bytes per second of a copy, operations per second of a product."""

    bandwidth: float
    products: float


@dataclass
class Steps:
    """Seconds of each step in which every stream decodes, and those of them in which the host waited."""

    whole: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def median(self) -> float:
        return statistics.median(self.whole[2:-2] or self.whole)

    def host_share(self) -> float:
        return 1 - sum(self.waited) / sum(self.whole)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which nothing more is begun")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="transformers' batching")
    parser.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--check", type=int, default=10_000, help="tokens by graphs and without; 0 leaves that out")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = indexed(torch.device(options.device))
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device; there is none here. --device cpu --shape tiny tries it without.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    transformers.utils.logging.set_verbosity_error()
    deadline = time.perf_counter() + options.seconds
    card = measured(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}: ", end="")
    print(f"copies run at {card.bandwidth / 1e12:.3f} TB/s, products at {card.products / 1e12:.1f} Tflop/s", flush=True)
    run(options, device, card, deadline)


def run(options: argparse.Namespace, device: torch.device, card: Card, deadline: float) -> None:
    model = random_model(options.shape, device)
    peer = twin(model) if options.peer else None
    core = our_core(options, model, device)
    prefill(core, options, card, model)
    stall(core, options)
    if options.check:
        check(core, options)
    for count in options.streams:
        if time.perf_counter() > deadline:
            print(f"N={count}: not run, --seconds {options.seconds:.0f} are over")
            continue
        theirs = None
        if peer is not None:
            with continuous(peer, count, options.prompt + options.new, page=PAGE, budget=4096) as batching:
                theirs = rate(lambda prompts, batching=batching: batching(prompts, options.new), count, options, device)
        report(count, options, card, core, theirs, device)


# what is measured against


def measured(device: torch.device) -> Card:
    """The best of ten copies of 4 GiB and of products of 8,192 by 8,192; small ones without a GPU."""
    size, side = (2**31, 8192) if device.type == "cuda" else (2**22, 256)
    source = torch.empty(size, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    left = torch.randn(side, side, device=device).bfloat16()
    copied = best(lambda: target.copy_(source), device)
    multiplied = best(lambda: left @ left, device)
    return Card(2 * size * 2 / copied, 2 * side**3 / multiplied)


def best(work: Callable[[], object], device: torch.device) -> float:
    """Seconds."""
    return min(seconds(work, device) for _ in range(10))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    wait(device)
    begun = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begun


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# the models


def random_model(shape: str, device: torch.device) -> AutoModelForCausalLM:
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPES[shape]), dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def twin(model: AutoModelForCausalLM) -> AutoModelForCausalLM:
    """A second model over the same weights, since two do not fit on every card."""
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)


def our_core(options: argparse.Namespace, model: AutoModelForCausalLM, device: torch.device) -> Core:
    """With room for every stream and no more: the rest of the memory is the peer's."""
    shape = model.config
    per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 2
    pages = max(options.streams) * (-(-(options.prompt + options.new) // PAGE) + 1)
    pages = max(pages, TOGETHER * -(-context(options) // PAGE)) + 16
    settings = EngineConfig(
        model=options.shape, device=str(device), dtype="bfloat16", max_batch=max(options.streams), memory="paged",
        kv_cache_bytes=pages * PAGE * per_token, max_context=context(options),
        cuda_graphs=options.cuda_graphs,
    )  # fmt: skip
    files = ModelFiles(tokenizer=Tokenizer.from_file(str(BUNDLED / "tokenizer.json")))
    begun = time.perf_counter()
    core, info = assemble(settings, model, files, device, lambda files, size: None)
    print(f"{options.shape}, ready in {time.perf_counter() - begun:.1f} s: {info.details}", flush=True)
    return core


def context(options: argparse.Namespace) -> int:
    """Tokens of the longest sequence: of an answer of the check, too."""
    return max(2 * (options.prompt + options.new), options.prompt + checked(options)[1])


# what is measured


def checked(options: argparse.Namespace) -> tuple[int, int]:
    """How many sequences have how many tokens of the check each."""
    count = min(TOGETHER, max(options.streams))
    return count, -(-options.check // count)


def check(core: Core, options: argparse.Namespace) -> None:
    """Sequences of one length, so that every step but the first ones has all of them, and as many as a bucket: by
    graphs and without, products have the same shapes. Prompts are never beside graphs here."""
    count, new = checked(options)
    runner, scheduler = core.runner, core.scheduler
    assert isinstance(runner, PackedRunner)
    graphs, bound, scheduler.chunk_tokens = runner.graphs, scheduler.chunk_tokens, 0
    found = []
    for chosen, tenant in ((graphs, "with"), (None, "without")):  # what one computed is not found by the other
        runner.graphs = chosen
        prompts = random_prompts(count, options.prompt, core.limits.vocab_size, 77)
        found.append(answers(core, prompts, new, tenant))
    runner.graphs, scheduler.chunk_tokens = graphs, bound
    same = sum(a == b for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))
    what = "graphs against none" if graphs is not None else "there are no graphs, so twice without"
    print(f"{what}: {same:,} of {count * new:,} greedy tokens the same", flush=True)


def answers(core: Core, prompts: list[list[int]], new: int, tenant: str) -> list[list[int]]:
    params = SamplingParams(max_tokens=new, ignore_eos=True, temperature=0.0)
    for number, prompt in enumerate(prompts):
        request = GenerationRequest(
            request_id=str(number), prompt_token_ids=tuple(prompt), sampling=params, tenant=tenant
        )
        core.inbox.put(Submit(number, request))
    ids: list[list[int]] = [[] for _ in prompts]
    while not (core.idle and core.inbox.empty()):
        for number, item in core.step():
            if isinstance(item, Delta):
                ids[number] += [token.id for token in item.tokens]
    return ids


def stall(core: Core, options: argparse.Namespace) -> None:
    """Steps in which some decode, alone and while a prompt as long as fits is computed beside them."""
    count = min(TOGETHER, max(options.streams) - 1)
    longest = core.limits.context_length - 1
    if count < 1:
        return
    vocab = core.limits.vocab_size
    for number, prompt in enumerate(random_prompts(count, 32, vocab, 3)):
        submit(core, number, prompt, longest - 32, GREEDY)
    while not core.scheduler.running or any(sequence.prefilling for sequence in core.scheduler.running):
        core.step()
    alone = [seconds_of(core.step) for _ in range(20)]
    submit(core, count, random_prompts(1, longest, vocab, 4)[0], 1, GREEDY)
    beside = [seconds_of(core.step)]
    while any(sequence.prefilling for sequence in core.scheduler.running):
        beside.append(seconds_of(core.step))
    for number in range(count):
        core.inbox.put(Cancel(number))
    core.step()
    before, after = statistics.median(alone), statistics.median(beside)
    print(
        f"{count} that decode: {before * 1e3:.2f} ms a step, beside a prompt of {longest} tokens {after * 1e3:.2f} ms "
        f"(x {after / before:.2f}), {core.scheduler.chunk_tokens or core.scheduler.step_tokens} of them a step",
        flush=True,
    )


def seconds_of(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def prefill(core: Core, options: argparse.Namespace, card: Card, model: AutoModelForCausalLM) -> None:
    """Prompts that fill several steps, with one token each; attention is left out of the operations."""
    count = max(1, 4 * core.scheduler.step_tokens // options.prompt)
    count = min(count, max(options.streams))
    spent = []
    for seed in (1, 2, 3):
        prompts = random_prompts(count, options.prompt, core.limits.vocab_size, seed)
        spent.append(seconds(lambda prompts=prompts: ours(core, prompts, 1), core.sampler.device))
    tokens = count * options.prompt / min(spent[1:])
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "lm_head" not in name)
    share = 2 * weights * tokens / card.products
    print(
        f"prefill of {count} x {options.prompt}: {tokens:,.0f} tok/s, {share:.0%} of the rate of products", flush=True
    )


def report(
    count: int, options: argparse.Namespace, card: Card, core: Core, theirs: float | None, device: torch.device
) -> None:
    first: list[float] = []
    steps = Steps()
    own = rate(lambda prompts: ours(core, prompts, options.new, steps, first), count, options, device)
    limit = count * card.bandwidth / step_bytes(core, count, options)
    decoded = count / steps.median() if steps.whole else 0.0
    peer = "not run" if theirs is None else f"{theirs:,.0f} tok/s (x {own / theirs:.2f})"
    print(f"N={count:<4} ours {own:,.0f} tok/s  continuous batching {peer}  first token {first[-1] * 1e3:.1f} ms")
    share = f"{steps.host_share():.0%}" if steps.whole else "?"
    print(
        f"       decoding {decoded:,.0f} of {limit:,.0f} tok/s ({decoded / limit:.0%}), host {share} of a step",
        flush=True,
    )


def step_bytes(core: Core, count: int, options: argparse.Namespace) -> float:
    """What a decoding step must read: every weight once (of the embedding only what is also the last layer's) and the
    keys and values of half-grown answers."""
    model = core.runner.model
    shape = model.config
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if not shape.tie_word_embeddings:
        table = model.get_input_embeddings().weight
        weights -= table.numel() * table.element_size()
    per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 2
    return weights + count * (options.prompt + options.new / 2) * per_token


def rate(way: Callable[..., int], count: int, options: argparse.Namespace, device: torch.device) -> float:
    """Tokens per second of the second run, with other prompts than the first."""
    vocab = SHAPES[options.shape]["vocab_size"]
    for seed in (1, 2):
        prompts = random_prompts(count, options.prompt, vocab, seed * 1000 + count)
        wait(device)
        begun = time.perf_counter()
        tokens = way(prompts)
        wait(device)
        spent = time.perf_counter() - begun
    return tokens / spent


def ours(
    core: Core, prompts: list[list[int]], new: int, steps: Steps | None = None, first: list[float] | None = None
) -> int:
    """Everything that a client gets; returns the number of tokens. `steps` is filled with those that only decode,
    `first` with the seconds to the first token."""
    for number, prompt in enumerate(prompts):
        submit(core, number, prompt, new, GREEDY)
    begun, tokens = time.perf_counter(), 0
    kept = Steps()
    with waiting() as waited:
        while True:
            waited[0], start = 0.0, time.perf_counter()
            items = core.step()
            now = time.perf_counter()
            decodes = len(core.scheduler.running) == len(prompts) and not any(
                s.prefilling for s in core.scheduler.running
            )
            if decodes:
                kept.whole.append(now - start)
                kept.waited.append(waited[0])
            for _, item in items:
                if isinstance(item, RequestFailed):
                    raise RuntimeError(item.message)
                if isinstance(item, Delta):
                    if not tokens and first is not None:
                        first.append(now - begun)
                    tokens += len(item.tokens)
            if core.idle:
                break
    if steps is not None:
        steps.whole, steps.waited = kept.whole, kept.waited
    return tokens


@contextmanager
def waiting() -> Iterator[list[float]]:
    """Seconds that steps wait for the device, in the one place where they do."""
    spent, original = [0.0], Arrival.wait

    def wait_and_count(self: Arrival) -> list:
        begun = time.perf_counter()
        found = original(self)
        spent[0] += time.perf_counter() - begun
        return found

    Arrival.wait = wait_and_count
    try:
        yield spent
    finally:
        Arrival.wait = original


if __name__ == "__main__":
    main()
