"""What guessing ahead brings, and what it costs where nothing repeats: the core with it and without, in one run.

    python benchmarks/speculation.py [--shape demo 0.6b] [--streams 1 8] [--new 192] [--rounds 3] [--guesses 8]

Both ways run the same core on the same requests, in turns; tokens per CPU second, the best round of each, and their
ratio. So that it is known what an answer repeats, answers are written beforehand: the model computes every step in
full, and the sampler is then handed logits that have the next token of the answer at the top. Workloads:

edit    the answer is the prompt's document of 200 tokens with one token in 25 changed
fields  values of 4 to 10 tokens out of the prompt, each behind 3 tokens that are new, as JSON from a document
prose   words of a prompt of the same language (Zipf's law over 2,000 words of 1 to 3 tokens, none depends on the one
        before), so that pairs of tokens come again and mislead
fresh   tokens at random: hardly anything to guess by
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.generation.core.step import Core
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig, Submit
from agent_server.generation.scheduling.sequence import Sequence, StepPlan
from benchmarks.recorded_forward import SHAPES, made
from events.options import SamplingParams

DOCUMENT = 200
FIRST_ID = 20
CHANGED = 25
Task = tuple[list[int], list[int]]
"""A prompt and its answer."""


def edit(chance: random.Random, vocab: int, new: int) -> Task:
    document = [chance.randrange(FIRST_ID, vocab) for _ in range(max(DOCUMENT, new))]
    answer = [chance.randrange(FIRST_ID, vocab) if chance.random() < 1 / CHANGED else token for token in document]
    return document, answer[:new]


def fields(chance: random.Random, vocab: int, new: int) -> Task:
    document = [chance.randrange(FIRST_ID, vocab) for _ in range(DOCUMENT)]
    answer: list[int] = []
    while len(answer) < new:
        answer += [chance.randrange(FIRST_ID, vocab) for _ in range(3)]
        start = chance.randrange(DOCUMENT - 10)
        answer += document[start : start + chance.randrange(4, 11)]
    return document, answer[:new]


def prose(chance: random.Random, vocab: int, new: int) -> Task:
    words = [[chance.randrange(FIRST_ID, vocab) for _ in range(chance.randrange(1, 4))] for _ in range(2000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    text = [token for word in chance.choices(words, weights, k=DOCUMENT + new) for token in word]
    return text[:DOCUMENT], text[DOCUMENT : DOCUMENT + new]


def fresh(chance: random.Random, vocab: int, new: int) -> Task:
    drawn = [chance.randrange(FIRST_ID, vocab) for _ in range(DOCUMENT + new)]
    return drawn[:DOCUMENT], drawn[DOCUMENT:]


WORKLOADS: dict[str, Callable[[random.Random, int, int], Task]] = {
    "edit": edit, "fields": fields, "prose": prose, "fresh": fresh,
}  # fmt: skip


class Dictated:
    """A runner whose logits are changed to dictate answers, by the sequences' numbers."""

    def __init__(self, runner: PackedRunner) -> None:
        self.runner = runner
        self.answers: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self.runner, name)

    def forward(self, plan: StepPlan, last: Tensor) -> tuple[list[Sequence], Tensor]:
        sequences, logits = self.runner.forward(plan, last)
        at = [(sequence, 0) for sequence in sequences]
        at += [(c.sequence, 1 + guess) for c in plan.chunks for guess in range(len(c.draft))]
        for row, (sequence, further) in enumerate(at):
            answer = self.answers[sequence.number]
            place = len(sequence.tokens) - 1 + further - sequence.prompt_length
            logits[row, answer[min(place, len(answer) - 1)]] += 1e4
        return sequences, logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["demo", "0.6b"], choices=["demo", *SHAPES])
    parser.add_argument("--workload", nargs="+", default=[*WORKLOADS], choices=[*WORKLOADS])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guesses", type=int, default=8)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for shape in options.shape:
        with tempfile.TemporaryDirectory() as folder:
            compare(shape, made(shape, Path(folder)), options)


def compare(shape: str, model: Path, options: argparse.Namespace) -> None:
    settings = EngineConfig(model=str(model), threads=1, max_batch=max(options.streams), dtype=options.dtype)
    core, info = load(settings, lambda status: None)
    runner = core.runner
    assert isinstance(runner, PackedRunner)
    core.runner = dictated = Dictated(runner)  # type: ignore[assignment]
    print(f"{shape}, {info.details['dtype']}, one thread, {options.guesses} guesses at most, {options.new} new tokens")
    print(f"{'workload':>9} {'streams':>8} {'without':>9} {'with':>9} {'ratio':>6} {'kept':>6} {'tokens a step':>14}")
    answer(core, dictated, [fresh(random.Random(0), info.vocab_size, 16)], 0)
    for name in options.workload:
        for count in options.streams:
            measure(core, dictated, name, count, info.vocab_size, options)


def measure(core: Core, dictated: Dictated, name: str, count: int, vocab: int, options: argparse.Namespace) -> None:
    best = {0: 0.0, options.guesses: 0.0}
    counters = core.counters
    guessed, kept = counters.spec_decode_num_draft_tokens_total, counters.spec_decode_num_accepted_tokens_total
    steps = tokens = 0
    for round_ in range(options.rounds):
        for guesses in best:
            chance = random.Random(f"{name} {count} {round_} {guesses}")
            tasks = [WORKLOADS[name](chance, vocab, options.new) for _ in range(count)]
            before, start = counters.iterations_total, time.process_time()
            answer(core, dictated, tasks, guesses)
            spent = time.process_time() - start
            best[guesses] = max(best[guesses], count * options.new / spent)
            if guesses:
                steps += counters.iterations_total - before
                tokens += count * options.new
    guessed = counters.spec_decode_num_draft_tokens_total - guessed
    kept = counters.spec_decode_num_accepted_tokens_total - kept
    without, with_ = best.values()
    share = f"{kept / guessed:>6.0%}" if guessed else f"{'-':>6}"
    row = f"{name:>9} {count:>8} {without:>9.1f} {with_:>9.1f} {with_ / without:>6.2f}"
    print(f"{row} {share} {tokens / max(1, steps) / count:>14.2f}", flush=True)


def answer(core: Core, dictated: Dictated, tasks: list[Task], guesses: int) -> None:
    """Everything that a client gets, for all at once; raises RuntimeError if an answer is not the dictated one."""
    dictated.answers.clear()
    got: dict[int, list[int]] = {}
    for number, (prompt, text) in enumerate(tasks):
        dictated.answers[number] = text
        got[number] = []
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=len(text), num_speculative_tokens=guesses)
        request = GenerationRequest(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=params)
        core.inbox.put(Submit(number, request))
    while True:
        for number, item in core.step():
            got[number] += [token.id for token in getattr(item, "tokens", ())]
        if core.idle:
            break
    if got != dictated.answers:
        raise RuntimeError("An answer is not the one that was dictated.")


if __name__ == "__main__":
    main()
