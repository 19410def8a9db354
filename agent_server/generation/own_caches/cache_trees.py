"""The caches that models make for themselves, as trees of tensors: several as one with a row for each sequence, and
rows of one apart again.

What a cache consists of is its model's own affair: layers of keys and values, windows, indexers, convolution and
recurrent states, lists. So nothing here knows a class. How a cache is laid out is learned when the model is loaded,
from three caches: the dimension in which two sequences differ from one has the rows, the one in which a longer prompt
differs from a shorter has the tokens, and an integer that is the prompt's length counts tokens. Tokens end at the
right edge: a cache that is joined with a longer one is padded on the left, as `generate` pads prompts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedConfig

Path = tuple[object, ...]
"""The keys, indices and names of attributes that lead from a cache to something in it."""
Part = tuple[object, list[int], int]
"""A cache, the rows of it that are wanted, and how many tokens, padding included, it has."""


class Unlike(Exception):
    """Caches of one model that are not laid out alike, as half a sentence."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Where rows and tokens are: the dimension of each tensor that has them, and the integers that count tokens.
    grows: tensors that get an entry behind the others for every token, as keys do, so that what a beginning has is the
    beginning of what a longer prompt has."""

    rows: dict[Path, int]
    tokens: dict[Path, int]
    counts: frozenset[Path]
    grows: frozenset[Path] = frozenset()

    @property
    def pads(self) -> bool:
        """Whether anything is kept for each token, so that padding must be masked."""
        return bool(self.tokens)


def learn(short: object, pair: object, long: object, lengths: tuple[int, int]) -> CacheLayout:
    """The layout, from caches of one prompt, of two prompts of the same length, and of one longer prompt that begins as
    the first. Raises Unlike."""
    one, two, more = (dict(leaves(cache)) for cache in (short, pair, long))
    if not one.keys() == two.keys() == more.keys():
        raise Unlike("its cache has other parts for other prompts")
    rows, tokens = {}, {}
    for path, leaf in one.items():
        if not isinstance(leaf, Tensor):
            continue
        if (row := _differs(leaf, two[path])) is not None:
            rows[path] = row
        if (token := _differs(leaf, more[path])) is not None:
            tokens[path] = token
    if not rows:
        raise Unlike("its cache has no rows")
    ints = (path for path, leaf in one.items() if type(leaf) is int)
    counts = frozenset(path for path in ints if (one[path], more[path]) == lengths)
    grows = frozenset(path for path, dim in tokens.items() if _begins(more[path], one[path], dim, lengths))
    return CacheLayout(rows, tokens, counts, grows)


ROUNDED = 0.1
"""Largest difference, as a share of the largest number, that rounding in 16 bits may explain."""


def _begins(long: object, short: object, dim: int, lengths: tuple[int, int]) -> bool:
    """Whether both have an entry for each token, and the long one begins as the short one."""
    if not isinstance(long, Tensor) or not isinstance(short, Tensor):
        return False
    if (short.shape[dim], long.shape[dim]) != lengths:
        return False
    off = (long.narrow(dim, 0, lengths[0]).float() - short.float()).abs().max()
    return bool(off <= ROUNDED * short.float().abs().max())


def _differs(left: Tensor, right: object) -> int | None:
    """The dimension in which two tensors are not of one size. Raises Unlike where there are several."""
    if not isinstance(right, Tensor) or left.dim() != right.dim():
        raise Unlike("its cache has other parts for other prompts")
    dimensions = [dim for dim in range(left.dim()) if left.shape[dim] != right.shape[dim]]
    if len(dimensions) > 1:
        raise Unlike("a part of its cache grows in two dimensions")
    return dimensions[0] if dimensions else None


def assemble(layout: CacheLayout, parts: list[Part], length: int) -> object:
    """One cache of all the wanted rows, in the order of the parts, that has `length` tokens; what stands before them is
    padding or dropped. The parts stay as they are. Raises Unlike."""
    return _joined(layout, [part[0] for part in parts], parts, length, ())


def taken(
    layout: CacheLayout, cache: object, length: int, start: int, among: frozenset[Path]
) -> tuple[object, dict[Path, Tensor]]:
    """A copy of a cache of one row and `length` tokens in two parts: of tensors that grow and are `among` those, what
    the tokens from `start` on have, by their paths; and the cache with all the rest. Neither shares memory with it."""
    grown: dict[Path, Tensor] = {}

    def take(path: Path, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if path in among and path in layout.grows and leaf.shape[layout.tokens[path]] == length:
            grown[path] = leaf.narrow(layout.tokens[path], start, length - start).clone()
            return None
        return leaf.clone()

    return _changed(cache, take), grown


def put_together(layout: CacheLayout, rest: object, grown: list[dict[Path, Tensor]]) -> object:
    """A cache, in memory of its own, of what `taken` made of it: `grown` has the pieces, one behind the other, and the
    last of them those that belong to `rest`."""

    def put(path: Path, leaf: object) -> object:
        if leaf is None and path in grown[-1]:
            return torch.cat([piece[path] for piece in grown], layout.tokens[path])
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return _changed(rest, put)


def _changed(item: object, change: Callable[[Path, object], object], path: Path = ()) -> object:
    """The tree with other leaves."""
    children = None if isinstance(item, Tensor) else _children(item)
    if children is None:
        return change(path, item)
    return _rebuilt(item, {key: _changed(child, change, (*path, key)) for key, child in children.items()})


def _joined(layout: CacheLayout, items: list[object], parts: list[Part], length: int, path: Path) -> object:
    first = items[0]
    if isinstance(first, Tensor):
        return _tensor(layout, items, parts, length, path) if path in layout.rows else first
    if type(first) is int:
        return length if path in layout.counts else first
    children = _children(first)
    if children is None:
        return first
    others = [_children(item) for item in items]
    if any(other is None or other.keys() != children.keys() for other in others):
        raise Unlike("its cache has other parts for other prompts")
    joined = {key: _joined(layout, [o[key] for o in others if o], parts, length, (*path, key)) for key in children}
    return _rebuilt(first, joined)


def _tensor(layout: CacheLayout, items: list[Any], parts: list[Part], length: int, path: Path) -> Tensor:
    row, token = layout.rows[path], layout.tokens.get(path)
    if not all(isinstance(item, Tensor) and item.dim() == items[0].dim() for item in items):
        raise Unlike("its cache has other parts for other prompts")
    if token is not None:
        size = min(length, max(item.shape[token] for item in items))
        items = [_fitted(item, token, size) for item in items]
    pieces = [_rows(item, row, rows) for item, (_, rows, _) in zip(items, parts, strict=True)]
    return torch.cat(pieces, row) if len(pieces) > 1 else pieces[0]


def _fitted(tensor: Tensor, dim: int, size: int) -> Tensor:
    """The last `size` along a dimension, with zeros in front where there are fewer."""
    have = tensor.shape[dim]
    if have >= size:
        return tensor.narrow(dim, have - size, size)
    return pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [size - have, 0])


def _rows(tensor: Tensor, dim: int, rows: list[int]) -> Tensor:
    if rows == list(range(tensor.shape[dim])):
        return tensor
    return tensor.index_select(dim, torch.tensor(rows, device=tensor.device))


def _children(item: object) -> dict[Any, Any] | None:
    """What a part of a cache consists of; None for what is no part of the tree."""
    if isinstance(item, dict):
        return item
    if isinstance(item, list | tuple):
        return dict(enumerate(item))
    if isinstance(item, type | Enum | torch.nn.Module | PreTrainedConfig):
        return None
    return vars(item) if hasattr(item, "__dict__") and not callable(item) else None


def _rebuilt(like: Any, children: dict[Any, Any]) -> object:
    if isinstance(like, list | tuple):
        return type(like)(children.values())
    rebuilt = copy.copy(like)
    (rebuilt if isinstance(rebuilt, dict) else vars(rebuilt)).update(children)
    return rebuilt


def leaves(cache: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Everything in a cache that has no parts itself, with the way to it."""
    children = None if isinstance(cache, Tensor) else _children(cache)
    if children is None:
        yield path, cache
        return
    for key, child in children.items():
        yield from leaves(child, (*path, key))


def tensor_bytes(cache: object) -> int:
    """Memory of all tensors in a cache, each counted once."""
    tensors = {id(leaf): leaf for _, leaf in leaves(cache) if isinstance(leaf, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
