"""Every decoder-only architecture that transformers has, tiny and random, on the core and beside `generate`.

    python -m benchmarks.families [FAMILY ...] [--new 16] [--steps 8] [--rounds 4] [--table docs/families.md]

For each, loaded as a served model is: how its sequences are run; of eight greedy requests that arrive piecemeal, in
float32, how many get the ids that `generate` gives for the prompt alone; and what a step of eight decoding rows costs
beside a step of `generate` on a padded batch of the same prompts (CPU time, the shortest of several, taken in turns,
one thread). Ids that part where two tokens are equally likely, within rounding, count as the same: which of them comes
depends on the order of a sum. TEST_DEVICE=cuda runs the core on a GPU; `generate` stays on the CPU.
--table also writes the rows into that page, between its two marks.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from agent_server.engine_protocol.protocol import EngineError
from benchmarks.family_shapes import FAMILIES, VOCAB, make
from tests.generation.harness import Driver, transformers_own

ROWS = 8
LONGEST = 90
TIE = 1e-4
"""Difference of two logits, as a share of the larger, that counts as none."""
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """path: how sequences are run. identical: of eight. cost: a step's, as a multiple of `generate`'s."""

    family: str
    path: str
    identical: int
    cost: float | None = None
    note: str = ""

    def __str__(self) -> str:
        cost = "" if self.cost is None else f"{self.cost:.2f}"
        return f"| {self.family} | {self.path} | {self.identical}/{ROWS} | {cost} | {self.note} |"


HEADER = "| family | path | identical | step at 8 rows, x `generate` | why not better |\n|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(HEADER)
    rows = []
    for family in options.families:
        rows.append(measure(family, options.new, options.steps, options.rounds))
        print(rows[-1], flush=True)
    print(f"\n{sum(row.identical == ROWS for row in rows)} of {len(rows)} are identical.")
    if options.table:
        write(options.table, rows)


def measure(family: str, new: int, steps: int = 0, rounds: int = 1) -> Row:
    """The family's row; `steps`: how many are timed in each round, 0 for none."""
    model = make(family)
    reference = copy.deepcopy(model)
    try:
        driver = Driver(model, max_batch=ROWS, step_tokens=64, flatten=True)
    except EngineError as error:
        return Row(family, "refused", 0, note=str(error))
    path, _, why = driver.info.details["batching"].partition(": ")
    asked = prompts()
    numbers = []
    for index, prompt in enumerate(asked):
        numbers.append(driver.submit(prompt, max_tokens=new))
        driver.step(index % 2)
    driver.finish()
    answers = [driver.ids(number) for number in numbers]
    same = sum(agrees(reference, prompt, ids) for prompt, ids in zip(asked, answers, strict=True))
    cost = compare(driver, reference, asked, steps, rounds) if steps else None
    return Row(family, path.removesuffix(", which is slow"), same, cost, why)


def prompts() -> list[list[int]]:
    """Eight of different lengths; without the ids that mean something to a model."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, LONGEST, (ROWS,), generator=generator).tolist()
    return [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def agrees(model: Any, prompt: list[int], ids: list[int]) -> bool:
    """Whether `generate` gives these ids, up to a tie, behind which it is asked again."""
    done = 0
    while True:
        wanted = generate(model, [prompt + ids[:done]], len(ids) - done)[0]
        apart = next((at for at, token in enumerate(wanted) if token != ids[done + at]), None)
        if apart is None:
            return True
        done += apart
        if not tied(model, prompt + ids[:done], ids[done], wanted[apart]):
            return False
        done += 1
        if done == len(ids):
            return True


@torch.inference_mode()
def tied(model: Any, tokens: list[int], one: int, other: int) -> bool:
    logits = model(input_ids=torch.tensor([tokens], device=model.device)).logits[0, -1].float()
    top = logits.max()
    return bool((top - logits[[one, other]]).max() <= TIE * top.abs())


def generate(model: Any, asked: list[list[int]], new: int) -> list[list[int]]:
    """Greedily, on a padded batch."""
    longest = max(map(len, asked))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in asked], device=model.device)
    mask = torch.ones_like(ids)
    for row, prompt in enumerate(asked):
        mask[row, : longest - len(prompt)] = 0
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode(), transformers_own(model):
        found: list[list[int]] = model.generate(input_ids=ids, attention_mask=mask, **options)[:, longest:].tolist()
    return found


def compare(driver: Driver, reference: Any, asked: list[list[int]], steps: int, rounds: int) -> float | None:
    """What a decoding step costs, as a multiple of one of `generate`; None where `generate` cannot run the batch."""
    theirs: list[float] = []
    mine: list[float] = []
    streamer = Stamps()
    for _ in range(rounds):
        streamer.times.clear()
        try:
            with transformers_own(reference), torch.inference_mode():
                stamped(reference, asked, steps + 2, streamer)
        except Exception:  # whatever a model's code does with padding
            return None
        theirs += streamer.gaps()[1:]
        numbers = [driver.submit(prompt, max_tokens=steps + 4) for prompt in asked]
        while (
            any(sequence.prefilling for sequence in driver.core.scheduler.running) or len(driver.ids(numbers[-1])) < 1
        ):
            driver.step()
        mine += [timed(driver.step) for _ in range(steps)]
        driver.finish()
    return min(mine) / min(theirs)


def stamped(model: Any, asked: list[list[int]], new: int, stamps: Stamps) -> None:
    longest = max(map(len, asked))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in asked], device=model.device)
    mask = torch.ones_like(ids)
    for row, prompt in enumerate(asked):
        mask[row, : longest - len(prompt)] = 0
    model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
        stopping_criteria=transformers.StoppingCriteriaList([stamps]),
    )  # fmt: skip


class Stamps(transformers.StoppingCriteria):
    """The CPU time at which `generate` had each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        self.times.append(time.process_time())
        return torch.zeros(len(input_ids), dtype=torch.bool)

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def timed(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def write(page: Path, rows: list[Row]) -> None:
    """The rows into the page, between its marks."""
    text = page.read_text("utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    lines = "\n".join([HEADER, *map(str, rows)])
    page.write_text(f"{before}{BEGIN}\n{lines}\n{after}", "utf-8")


if __name__ == "__main__":
    main()
