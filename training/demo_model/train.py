"""Train the demo model on generated dialogues; an interrupted run goes on where it stopped."""

import argparse
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.demo_model.batches import Batch, copy_batch, dialogue_batches, encode, pad
from training.demo_model.data_dialogues import CATEGORY_WEIGHTS, DialogueFactory
from training.demo_model.grow import grow_from
from training.demo_model.model import Shape, TinyLlama, random_weights
from training.demo_model.model_structure import structured_weights
from training.demo_model.optimizer import BFLOAT16_CPU, COMPUTE_TYPE, build_optimizers, set_rate, state_of
from training.demo_model.parallel import Workers, run_workers
from training.demo_model.tokenizer import build

COPY_SHARE = 0.05
RAMP_STEPS = 50
PROBE_ROWS = 24
MORE = 3


@dataclass
class Progress:
    """What has been done so far, kept in the checkpoints."""

    steps: int = 0
    tokens: int = 0
    targets: int = 0
    seconds: float = 0.0
    runs: int = 0
    loss: float = 0.0


class Trainer:
    """The model, its optimizers and the progress, with checkpoints in a folder."""

    def __init__(self, options: argparse.Namespace, workers: Workers) -> None:
        self.options, self.workers = options, workers
        self.folder: Path = options.output
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = load_tokenizer(self.folder)
        self.model = new_model(self.tokenizer.get_vocab_size(), options.seed)
        if options.start is not None:
            grow_from(self.model, options.start)
        self.rates = [options.matrix_rate, options.rate]
        self.optimizers = build_optimizers(self.model, *self.rates)
        self.progress = Progress()
        self._resume()
        self.run = torch.compile(self.model, dynamic=True) if options.compile else self.model
        self.seed = f"{options.seed}-{self.progress.runs}-{workers.rank}"
        self.rng = random.Random(self.seed)
        self.last = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        """Path of the newest checkpoint."""
        return self.folder / "checkpoint.pt"

    def _resume(self) -> None:
        if self.checkpoint.exists():
            state: dict[str, Any] = torch.load(self.checkpoint)
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.progress = Progress(**state["progress"])
        self.progress.runs += 1

    def save(self) -> None:
        """Write a checkpoint, replacing the last one only when it is complete."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": state_of(self.optimizers),
            "progress": vars(self.progress),
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def share_done(self) -> float:
        """Return the share of the tokens or of the minutes that is done, whichever is larger; 1 ends the training."""
        done = self.progress
        return max(done.tokens / self.options.tokens, done.seconds / (60 * self.options.minutes))

    def rate_factor(self) -> float:
        """Return the share of the full learning rate: a ramp, a plateau, a cosine to zero."""
        left = 1 - self.share_done()
        decay = 0.5 - 0.5 * math.cos(math.pi * min(1.0, max(0.0, left) / self.options.decay))
        return max(0.005, decay) * min(1.0, (self.progress.steps + 1) / RAMP_STEPS)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over the learned tokens."""
        with torch.autocast("cpu", COMPUTE_TYPE, enabled=BFLOAT16_CPU):
            hidden = self.run(batch.tokens)[:, :-1]
            logits = self.model.logits(hidden[batch.targets[:, 1:]])
        return F.cross_entropy(logits.float(), batch.tokens[:, 1:][batch.targets[:, 1:]])

    def step(self, batch: Batch) -> None:
        """Learn from one batch."""
        set_rate(self.optimizers, self.rates, self.rate_factor())
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.workers.average_gradients(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._count(batch, loss.item())

    def _count(self, batch: Batch, loss: float) -> None:
        now = time.monotonic()
        counted = [batch.tokens.numel(), float(batch.targets.sum()), loss, now - self.last]
        tokens, targets, losses, seconds = self.workers.total(counted)
        self.last = now
        done, loss = self.progress, losses / self.workers.count
        done.steps += 1
        done.tokens += int(tokens)
        done.targets += int(targets)
        done.seconds += seconds / self.workers.count
        done.loss = loss if done.steps == 1 else 0.98 * done.loss + 0.02 * loss

    def batches(self) -> Iterator[Batch]:
        """Yield copying at first, then dialogues with a little copying."""
        size, vocabulary = self.options.batch, self.tokenizer.get_vocab_size()
        dialogues = dialogue_batches(self.tokenizer, f"train-{self.seed}", size)
        while True:
            warming = self.progress.tokens < self.options.copy_tokens
            if warming or self.rng.random() < COPY_SHARE:
                yield copy_batch(self.rng, vocabulary, size)
            else:
                yield next(dialogues)

    def train(self) -> None:
        """Train until the token count is reached."""
        self.last = time.monotonic()
        for batch in self.batches():
            before = self.progress.seconds
            self.step(batch)
            if self.workers.leads:
                self._house_keeping(before)
            if self.share_done() >= 1:
                break
        if self.workers.leads:
            self.save()
            self._report()
            print(probe(self.model, self.tokenizer), flush=True)

    def _house_keeping(self, before: float) -> None:
        """Report, save and measure whenever the clock has passed a multiple of an interval."""
        tasks = (
            (self.options.report_seconds, self._report),
            (self.options.save_seconds, self.save),
            (self.options.probe_seconds, self._probe),
        )
        for interval, task in tasks:
            if before // interval < self.progress.seconds // interval:
                task()

    def _probe(self) -> None:
        print(f"  {probe(self.model, self.tokenizer)}", flush=True)

    def _report(self) -> None:
        done = self.progress
        rate = done.tokens / max(done.seconds, 1e-9)
        print(
            f"{done.seconds / 60:.1f} min, step {done.steps}, {done.tokens / 1e6:.2f} M tokens "
            f"({rate:.0f}/s), loss {done.loss:.4f}, rate {self.rate_factor():.3f}",
            flush=True,
        )


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the run's tokenizer, made when there is none yet."""
    path = folder / "tokenizer.json"
    if not path.exists():
        build().save(str(path))
    return Tokenizer.from_file(str(path))


def new_model(vocabulary: int, seed: int) -> TinyLlama:
    """Return a model with structured initial weights."""
    generator = torch.Generator().manual_seed(seed)
    model = TinyLlama(Shape(vocabulary))
    random_weights(model, generator)
    structured_weights(model, generator)
    return model


@torch.no_grad()
def probe(model: TinyLlama, tokenizer: Tokenizer) -> dict[str, float]:
    """Return, by category, how often every learned token of a held-out dialogue ranks first."""
    shares = {}
    for kind in CATEGORY_WEIGHTS:
        factory = DialogueFactory(f"probe-{kind}", held_out=True)
        batch = pad([encode(tokenizer, factory.make(kind)) for _ in range(PROBE_ROWS)])
        with torch.autocast("cpu", COMPUTE_TYPE, enabled=BFLOAT16_CPU):
            best = model.logits(model(batch.tokens)[:, :-1]).argmax(-1)
        right = (best == batch.tokens[:, 1:]) | ~batch.targets[:, 1:]
        shares[kind] = round(right.all(1).float().mean().item(), 2)
    return shares


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="folder for the tokenizer and checkpoints")
    parser.add_argument("--start", type=Path, help="model folder whose weights, grown, a new run starts from")
    parser.add_argument("--tokens", type=float, default=40e6, help="tokens to train on")
    parser.add_argument("--minutes", type=float, default=math.inf, help="minutes to train at most")
    parser.add_argument("--copy-tokens", type=float, default=1.5e6, help="tokens of pure copying")
    parser.add_argument("--decay", type=float, default=0.9, help="share with a falling rate")
    parser.add_argument("--batch", type=int, default=2560, help="padded tokens of a process's batch")
    parser.add_argument("--matrix-rate", type=float, default=0.009, help="rate of the matrices")
    parser.add_argument("--rate", type=float, default=2e-3, help="rate of the other weights")
    parser.add_argument("--processes", type=int, default=2, help="one for each core")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument(
        "--more", nargs="*", choices=list(CATEGORY_WEIGHTS), default=[], help=f"drawn {MORE} times as often"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-seconds", type=float, default=30)
    parser.add_argument("--save-seconds", type=float, default=120)
    parser.add_argument("--probe-seconds", type=float, default=300)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser.parse_args()


def work(options: argparse.Namespace, workers: Workers) -> None:
    """Train in one of the processes."""
    torch.set_num_threads(options.threads)
    for kind in options.more:
        CATEGORY_WEIGHTS[kind] *= MORE
    Trainer(options, workers).train()


def main() -> None:
    """Train from the start or from the newest checkpoint."""
    options = parse_options()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.start is not None and not (options.output / "tokenizer.json").exists():
        shutil.copy(options.start / "tokenizer.json", options.output / "tokenizer.json")
    load_tokenizer(options.output)
    run_workers(work, options, options.processes)


if __name__ == "__main__":
    main()
