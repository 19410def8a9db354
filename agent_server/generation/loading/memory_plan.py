"""How a device's memory is shared out: plain arithmetic, everything in bytes unless it says tokens.

What is free once the weights are there pays, in this order, for a step's activations and its sampling (measured by
running the largest one), for captured graphs, for what allocators lose between blocks, and for keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
GIB = 2**30
LOST_SHARE = 0.03
"""Of what is free: lost between blocks of the allocator, and taken by libraries when they are first used."""
LOST_AT_LEAST = 256 * MIB
GRAPH = 6 * MIB
"""A captured graph's own nodes, some thousand kernels with their arguments."""
WORKSPACE = 64 * MIB
"""What cuBLAS keeps for the one stream that captures (32 MiB on Hopper, and once more for cuBLASLt)."""
LEAST_PAGES = 2


class TooLittle(Exception):
    """Nothing is left for keys and values; the message is one sentence that says what takes the memory."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model asks for. per_token: keys and values of a token in all layers. page: tokens in a page. wanted:
    tokens beyond which more memory is of no use."""

    per_token: int
    page: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Who gets what; `tokens` of keys and values, in whole pages, take `cache` bytes."""

    step: int
    graphs: int
    lost: int
    cache: int
    tokens: int

    def __str__(self) -> str:
        parts = (("a step", self.step), ("graphs", self.graphs), ("spare", self.lost), ("keys and values", self.cache))
        return ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in parts)


def share_out(free: int, demand: Demand, *, step: int, graphs: int) -> Shares:
    """`free`: once the weights are there. step, graphs: what those take. Raises TooLittle."""
    lost = max(LOST_AT_LEAST, int(free * LOST_SHARE))
    left = free - step - graphs - lost
    tokens = min(demand.wanted, left // demand.per_token) // demand.page * demand.page
    if tokens < LEAST_PAGES * demand.page:
        raise TooLittle(
            f"{free / GIB:.2f} GiB are free beside the weights; a step takes {step / GIB:.2f}, graphs "
            f"{graphs / GIB:.2f} and {lost / GIB:.2f} stay spare, which leaves too little for keys and values: "
            "a smaller AGENT_SERVER_MAX_BATCH or AGENT_SERVER_STEP_TOKENS makes a step smaller, --dtype or a quantised "
            "model the weights."
        )
    return Shares(step, graphs, lost, tokens * demand.per_token, tokens)


CPU_SHARE = 0.3
"""Of the memory that is free on a machine, which others use too, for keys and values."""
CPU_CACHE = 128 * MIB
"""For keys and values beside a model that takes next to nothing itself."""


def cpu_tokens(free: int, weights: int, demand: Demand, context: int) -> int:
    """Tokens of keys and values on a machine that has other work: in proportion to the bytes of the weights, and at
    least as much as one sequence of the whole context, if that much is free."""
    bound = max(context, (CPU_CACHE + 2 * weights) // demand.per_token)
    return min(demand.wanted, bound, int(free * CPU_SHARE) // demand.per_token)


def graphs_reserve(count: int, rows: int, tokens: int, vocab_size: int, token_bytes: int) -> int:
    """Memory of `count` captured graphs that share one pool: activations of the largest step's `tokens`, the logits of
    its `rows` in the model's precision and in float32, and each graph's nodes."""
    if not count:
        return 0
    return WORKSPACE + count * GRAPH + tokens * token_bytes + rows * 6 * vocab_size


def state_tokens(per_token: int, per_sequence: int) -> int:
    """How many tokens a sequence's state of `per_sequence` bytes takes the room of."""
    return -(-per_sequence // max(1, per_token))
