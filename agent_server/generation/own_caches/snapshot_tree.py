"""Snapshots of caches as a tree over their tokens: what several begin with is there once.

A node stands for the tokens on the way to it. Its edge, the last of them, has what tensors that grow have for these
tokens (keys and values); where a snapshot was taken, the node also has the rest, states and windows, which cannot be
cut back to an earlier token. A node without that is where ways part.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from torch import Tensor

from agent_server.generation.own_caches.cache_trees import CacheLayout, Path, put_together, taken, tensor_bytes
from agent_server.generation.scheduling.sequence import common_prefix

CODE = "q"
"""Tokens are arrays of 64-bit integers: a list has an object for each."""


@dataclass(eq=False, slots=True)
class Node:
    """edge: its last tokens, those behind its parent. depth: tokens on the way to its end. grown: what these last
    tokens have, by paths. rest: what else the cache had at its end, None if nothing was taken there, with the room it
    takes, `size`, in tokens."""

    parent: Node | None = None
    edge: array[int] = field(default_factory=lambda: array(CODE))
    depth: int = 0
    grown: dict[Path, Tensor] = field(default_factory=dict)
    children: dict[int, Node] = field(default_factory=dict)
    rest: object | None = None
    size: int = 0

    def way(self) -> list[Node]:
        """The nodes from below the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Match:
    """How far the tree goes with some tokens. node: the last that they pass. inside: tokens of `below`, one of its
    children, that they go on with, 0 if there is none. last: the last node passed where a snapshot was taken."""

    node: Node
    below: Node | None
    inside: int
    last: Node | None

    @property
    def length(self) -> int:
        return self.node.depth + self.inside


def match(root: Node, tokens: array[int]) -> Match:
    """The way of the tokens, which no node's tokens may be longer than."""
    node, last = root, None
    while node.depth < len(tokens):
        below = node.children.get(tokens[node.depth])
        if below is None:
            break
        piece = tokens[node.depth : node.depth + len(below.edge)]
        inside = common_prefix(below.edge, piece, 1, len(piece))
        if inside < len(below.edge):
            return Match(node, below, inside, last)
        node = below
        last = node if node.rest is not None else last
    return Match(node, None, 0, last)


def grow(root: Node, tokens: array[int], cache: object, layout: CacheLayout, token_bytes: int) -> tuple[Node, int]:
    """The node at the end of the tokens, with a copy of what a cache of exactly these has; and the room, in tokens,
    that it took. The tree stays as it was if that fails."""
    found = match(root, tokens)
    halves = None if found.below is None else _cut(found.below, found.inside, layout)
    edges = [node.grown for node in found.node.way()] + ([halves[0]] if halves else [])
    # A tensor whose beginning is not kept on the way, as that of a window that went on, stays whole.
    among = layout.grows.intersection(*edges)
    rest, grown = taken(layout, cache, len(tokens), found.length, among)
    size = -(-tensor_bytes(rest) // token_bytes)
    node = found.node
    if found.below is not None and halves is not None:
        node = _part(found.below, found.inside, halves)
    if found.length < len(tokens):
        node.children[tokens[found.length]] = node = Node(node, tokens[found.length :], len(tokens), grown)
    room = len(tokens) - found.length + size - node.size
    node.rest, node.size = rest, size
    return node, room


def restored(node: Node, layout: CacheLayout) -> object:
    """A cache, in memory of its own, as it was when the node's snapshot was taken."""
    return put_together(layout, node.rest, [each.grown for each in node.way()])


def forget(node: Node) -> int:
    """Give up a node's snapshot, and what stands in the tree for it alone; returns the room that it took, in tokens."""
    room = node.size
    node.rest, node.size = None, 0
    while node.rest is None and not node.children and node.parent is not None:
        room += len(node.edge)
        del node.parent.children[node.edge[0]]
        node = node.parent
    return room


Halves = tuple[dict[Path, Tensor], dict[Path, Tensor]]


def _cut(node: Node, inside: int, layout: CacheLayout) -> Halves:
    """What the first tokens of an edge have, and what the others, each in memory of its own."""
    first, second = {}, {}
    for path, tensor in node.grown.items():
        dim = layout.tokens[path]
        first[path] = tensor.narrow(dim, 0, inside).clone()
        second[path] = tensor.narrow(dim, inside, len(node.edge) - inside).clone()
    return first, second


def _part(node: Node, inside: int, halves: Halves) -> Node:
    """A new node within an edge, before the one at its end."""
    assert node.parent is not None
    before = node.parent
    upper = Node(before, node.edge[:inside], before.depth + inside, halves[0], {node.edge[inside]: node})
    before.children[node.edge[0]] = upper
    node.parent, node.edge, node.grown = upper, node.edge[inside:], halves[1]
    return upper
