"""Batch and unbatch the caches that models create themselves, treated as trees of tensors.

A cache may consist of layers of keys and values, windows, indexers, convolution and recurrent states, or lists, so
nothing here depends on its class. Its layout is learned when the model is loaded, from three caches: the dimension in
which two sequences differ from one is that of the rows, the dimension in which a longer prompt differs from a shorter
one is that of the tokens, and an integer that equals the prompt's length counts tokens. Tokens are aligned to the
right: a cache that is joined with a longer one is padded on the left, as `generate` pads prompts.
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
"""The keys, indices and attribute names that lead from a cache to one of its parts."""
Part = tuple[object, list[int], int]
"""A cache, the rows to take from it, and the number of its tokens with padding."""


class DifferentLayouts(Exception):
    """Caches of one model have different layouts. The message is a clause."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The structure of a model's caches. rows, tokens: the dimension of rows and of tokens, for each tensor that has
    one. counts: the integers that count tokens. grows: the tensors to which each token appends one entry, such as keys,
    so that a prefix's tensor is a prefix of the whole prompt's."""

    rows: dict[Path, int]
    tokens: dict[Path, int]
    counts: frozenset[Path]
    grows: frozenset[Path] = frozenset()

    @property
    def pads(self) -> bool:
        """Whether a cache has entries for each token, so that padding must be masked."""
        return bool(self.tokens)


def learn(short: object, pair: object, long: object, lengths: tuple[int, int]) -> CacheLayout:
    """Determine the layout from caches of one prompt, of two prompts of that length, and of one longer prompt with the
    first as its prefix. lengths: tokens of the first and the longer prompt. Raises DifferentLayouts."""
    one, two, more = (dict(leaves(cache)) for cache in (short, pair, long))
    if not one.keys() == two.keys() == more.keys():
        raise DifferentLayouts("its cache has other parts for other prompts")
    rows, tokens = {}, {}
    for path, leaf in one.items():
        if not isinstance(leaf, Tensor):
            continue
        if (row := _differing_dimension(leaf, two[path])) is not None:
            rows[path] = row
        if (token := _differing_dimension(leaf, more[path])) is not None:
            tokens[path] = token
    if not rows:
        raise DifferentLayouts("its cache has no rows")
    ints = (path for path, leaf in one.items() if type(leaf) is int)
    counts = frozenset(path for path in ints if (one[path], more[path]) == lengths)
    grows = frozenset(path for path, dim in tokens.items() if _is_prefix(more[path], one[path], dim, lengths))
    return CacheLayout(rows, tokens, counts, grows)


ROUNDED = 0.1
"""The largest difference, relative to the largest number, that is attributed to rounding in 16 bits."""


def _is_prefix(long: object, short: object, dim: int, lengths: tuple[int, int]) -> bool:
    """Return whether both have an entry for each token, and the short one is a prefix of the long one."""
    if not isinstance(long, Tensor) or not isinstance(short, Tensor):
        return False
    if (short.shape[dim], long.shape[dim]) != lengths:
        return False
    off = (long.narrow(dim, 0, lengths[0]).float() - short.float()).abs().max()
    return bool(off <= ROUNDED * short.float().abs().max())


def _differing_dimension(left: Tensor, right: object) -> int | None:
    """Return the dimension in which two tensors differ in size, or None. Raises DifferentLayouts if several do."""
    if not isinstance(right, Tensor) or left.dim() != right.dim():
        raise DifferentLayouts("its cache has other parts for other prompts")
    dimensions = [dim for dim in range(left.dim()) if left.shape[dim] != right.shape[dim]]
    if len(dimensions) > 1:
        raise DifferentLayouts("a part of its cache grows in two dimensions")
    return dimensions[0] if dimensions else None


def assemble(layout: CacheLayout, parts: list[Part], length: int) -> object:
    """Return one cache of `length` tokens with the rows of all parts, in their order. Shorter rows are padded on the
    left and longer ones truncated there. The parts are unchanged. Raises DifferentLayouts."""
    return _join(layout, [part[0] for part in parts], parts, length, ())


def take_apart(
    layout: CacheLayout, cache: object, length: int, start: int, among: frozenset[Path]
) -> tuple[object, dict[Path, Tensor]]:
    """Copy a cache of one row and `length` tokens in two parts: the cache without the tensors that grow and are
    `among` those given, and the entries of these tensors from token `start` on, by path."""
    grown: dict[Path, Tensor] = {}

    def take(path: Path, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if path in among and path in layout.grows and leaf.shape[layout.tokens[path]] == length:
            grown[path] = leaf.narrow(layout.tokens[path], start, length - start).clone()
            return None
        return leaf.clone()

    return _map(cache, take), grown


def rebuild(layout: CacheLayout, rest: object, grown: list[dict[Path, Tensor]]) -> object:
    """Return a copy of the cache that `take_apart` divided. rest: its first part. grown: the entries of the tensors
    that grow, in pieces to be concatenated; the last piece is the one that belongs to `rest`."""

    def put(path: Path, leaf: object) -> object:
        if leaf is None and path in grown[-1]:
            return torch.cat([piece[path] for piece in grown], layout.tokens[path])
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return _map(rest, put)


def _map(item: object, change: Callable[[Path, object], object], path: Path = ()) -> object:
    """Return a copy of the tree with `change(path, leaf)` for each leaf."""
    children = None if isinstance(item, Tensor) else _children(item)
    if children is None:
        return change(path, item)
    return _with_children(item, {key: _map(child, change, (*path, key)) for key, child in children.items()})


def _join(layout: CacheLayout, items: list[Any], parts: list[Part], length: int, path: Path) -> object:
    first = items[0]
    if isinstance(first, Tensor):
        if path not in layout.rows:
            return first
        row, token = layout.rows[path], layout.tokens.get(path)
        if not all(isinstance(item, Tensor) and item.dim() == items[0].dim() for item in items):
            raise DifferentLayouts("its cache has other parts for other prompts")
        if token is not None:
            size = min(length, max(item.shape[token] for item in items))
            items = [
                item.narrow(token, item.shape[token] - size, size)
                if item.shape[token] >= size
                else pad(item, [0, 0] * (item.dim() - 1 - token) + [size - item.shape[token], 0])
                for item in items
            ]
        pieces = [
            item
            if rows == list(range(item.shape[row]))
            else item.index_select(row, torch.tensor(rows, device=item.device))
            for item, (_, rows, _) in zip(items, parts, strict=True)
        ]
        return torch.cat(pieces, row) if len(pieces) > 1 else pieces[0]
    if type(first) is int:
        return length if path in layout.counts else first
    children = _children(first)
    if children is None:
        return first
    others = [_children(item) for item in items]
    if any(other is None or other.keys() != children.keys() for other in others):
        raise DifferentLayouts("its cache has other parts for other prompts")
    joined = {key: _join(layout, [o[key] for o in others if o], parts, length, (*path, key)) for key in children}
    return _with_children(first, joined)


def _children(item: object) -> dict[Any, Any] | None:
    """Return the parts of a node of the tree by key, index or attribute name; None for a leaf."""
    if isinstance(item, dict):
        return item
    if isinstance(item, list | tuple):
        return dict(enumerate(item))
    if isinstance(item, type | Enum | torch.nn.Module | PreTrainedConfig):
        return None
    return vars(item) if hasattr(item, "__dict__") and not callable(item) else None


def _with_children(like: Any, children: dict[Any, Any]) -> object:
    """Return a copy of a node with other children."""
    if isinstance(like, list | tuple):
        return type(like)(children.values())
    rebuilt = copy.copy(like)
    (rebuilt if isinstance(rebuilt, dict) else vars(rebuilt)).update(children)
    return rebuilt


def leaves(cache: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Iterate over a cache's leaves with their paths."""
    children = None if isinstance(cache, Tensor) else _children(cache)
    if children is None:
        yield path, cache
        return
    for key, child in children.items():
        yield from leaves(child, (*path, key))


def tensor_bytes(cache: object) -> int:
    """Return the bytes of all tensors in a cache, each counted once."""
    tensors = {id(leaf): leaf for _, leaf in leaves(cache) if isinstance(leaf, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
