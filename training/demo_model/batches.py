"""Token batches: dialogues packed by length, and random sequences to copy."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.demo_model.data_dialogues import DialogueFactory
from training.demo_model.render import Dialogue, render
from training.demo_model.tokenizer import MARKERS

POOL = 512
LONGEST = 4096
COPY_LENGTHS = (6, 8, 12, 16, 24)
COPY_DISTANCES = (0, 8, 16, 40, 100, 200)


class Row(NamedTuple):
    """The tokens of one dialogue and which of them are learned."""

    tokens: list[int]
    targets: list[bool]


class Batch(NamedTuple):
    """Padded tokens and the mask of the learned ones, both of shape rows x length."""

    tokens: Tensor
    targets: Tensor


def encode(tokenizer: Tokenizer, dialogue: Dialogue) -> Row:
    """Encode a dialogue segment by segment."""
    segments = render(dialogue)
    encodings = tokenizer.encode_batch_fast([segment.text for segment in segments])
    tokens: list[int] = []
    targets: list[bool] = []
    for segment, encoding in zip(segments, encodings, strict=True):
        learned = [segment.target] * len(encoding.ids)
        if segment.past:
            learned[0] = False
        tokens += encoding.ids
        targets += learned
    return Row(tokens, targets)


def pad(rows: list[Row]) -> Batch:
    """Pad rows to a common length; padding is token 0 and never learned."""
    length = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens)
        targets[index, : len(row.targets)] = torch.tensor(row.targets)
    return Batch(tokens, targets)


def group_by_length(rows: list[Row], size: int) -> list[list[Row]]:
    """Cut rows sorted by length into groups of at most `size` padded tokens."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda item: len(item.tokens)):
        if groups and len(row.tokens) * (len(groups[-1]) + 1) <= size:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def dialogue_batches(tokenizer: Tokenizer, seed: str, size: int) -> Iterator[Batch]:
    """Yield batches of training dialogues without end."""
    factory, order = DialogueFactory(seed), random.Random(seed)
    rows = (encode(tokenizer, dialogue) for dialogue in factory.stream())
    short = (row for row in rows if len(row.tokens) <= LONGEST)
    while True:
        groups = group_by_length(list(islice(short, POOL)), size)
        order.shuffle(groups)
        yield from (pad(group) for group in groups)


def copy_batch(rng: random.Random, vocabulary: int, size: int) -> Batch:
    """Return random tokens that are repeated after a marker; the second time is learned."""
    length, distance = rng.choice(COPY_LENGTHS), rng.choice(COPY_DISTANCES)
    count = max(1, size // (2 * length + distance + 1))
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    first, last = len(MARKERS), vocabulary
    shape = (count, distance + length)
    shown = torch.randint(first, last, shape, generator=generator)
    marker = torch.full((count, 1), MARKERS.index("<think>"))
    tokens = torch.cat([shown[:, distance:], shown[:, :distance], marker, shown[:, distance:]], 1)
    targets = torch.zeros_like(tokens, dtype=torch.bool)
    targets[:, -length + 1 :] = True
    return Batch(tokens, targets)
