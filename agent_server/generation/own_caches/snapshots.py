"""What caches of a model's own held at some length, kept for prompts that begin so.

States, unlike keys, cannot be cut back to an earlier token, so a snapshot serves a prompt only whole. Snapshots are
taken where prompts are likely to part:

- where a generation ended, for the next turn that has all of it;
- a little before the end of a prompt, for a next turn that has not: templates leave out what an earlier turn thought,
  and what the prompt opened for it;
- where a prompt parts from those before it: what they share, instructions and tools, is likely to come again.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from torch import Tensor

from agent_server.generation.faults import first_line, out_of_memory
from agent_server.generation.own_caches.cache_trees import CacheLayout, Path, Unlike, put_together, taken, tensor_bytes
from agent_server.generation.scheduling.leases import Lease, Leases, LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence, common_prefix

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
    matched = match(root, tokens)
    halves = None if matched.below is None else _cut(matched.below, matched.inside, layout)
    edges = [node.grown for node in matched.node.way()] + ([halves[0]] if halves else [])
    # A tensor whose beginning is not kept on the way, as that of a window that went on, stays whole.
    among = layout.grows.intersection(*edges)
    rest, grown = taken(layout, cache, len(tokens), matched.length, among)
    size = -(-tensor_bytes(rest) // token_bytes)
    node = matched.node
    if matched.below is not None and halves is not None:
        node = _part(matched.below, matched.inside, halves)
    if matched.length < len(tokens):
        node.children[tokens[matched.length]] = node = Node(node, tokens[matched.length :], len(tokens), grown)
    room = len(tokens) - matched.length + size - node.size
    node.rest, node.size = rest, size
    return node, room


def restored(node: Node, layout: CacheLayout) -> object:
    """Return a copy of the cache as it was when the node's snapshot was taken."""
    return put_together(layout, node.rest, [each.grown for each in node.way()])


def forget(node: Node) -> int:
    """Drop a node's snapshot and the nodes that only led to it. Returns the number of tokens freed."""
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


logger = logging.getLogger("agent_server.generation")
LEAST = 32
"""Tokens below which a snapshot saves too little."""
TAIL = 16
"""Tokens at the end of a prompt that a next turn may not have: what opens an answer, as templates write it."""


class Snapshots:
    """The kept ones of every owner, the least recently used first. room: in tokens, of `token_bytes` bytes each; what
    is kept beside tokens' own counts as so many tokens as have its bytes, which are about `state`."""

    def __init__(self, layout: CacheLayout, *, state: int = 0, token_bytes: int = 1, room: int = sys.maxsize) -> None:
        self._layout = layout
        self._state = state
        self._token_bytes = max(1, token_bytes)
        self._roots: dict[str, Node] = {}
        self._entries: OrderedDict[Node, str] = OrderedDict()
        self._leased: set[Node] = set()
        self.leases = Leases(room, self.release_lease)
        self.used_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sequence: Sequence) -> Node | None:
        """The longest that the sequence begins with; at least one token stays to be computed."""
        node = match(self._root(sequence), _tokens(sequence, sequence.known - 1)).last
        if node is not None:
            self._entries.move_to_end(node)
        return node

    def restore(self, node: Node) -> object | None:
        """The snapshot as a cache to run on; None where there is no memory for it."""
        try:
            return restored(node, self._layout)
        except Exception as error:
            self._fail(error)
            return None

    def stops(self, sequence: Sequence, start: int) -> tuple[int, ...]:
        """Where snapshots of its prompt are to be taken, of which the first `start` tokens are there."""
        end = sequence.known
        # What fills a place is known to be what the next turn has.
        open_end = sequence.terms is None and end - TAIL - start >= 2 * LEAST
        last = end - TAIL if open_end else end
        shared = match(self._root(sequence), _tokens(sequence, end - 1)).length
        stops = {last}
        if shared - start >= LEAST and shared <= last:
            stops = {shared, last} if last - shared >= LEAST else {shared}
        return tuple(sorted(stop for stop in stops if stop - start >= LEAST))

    def keep(self, sequence: Sequence, length: int, cache: object, room: int) -> None:
        """A copy of the sequence's cache, which has `length` tokens, in `room` tokens at the most: for it older ones
        go, but none that is kept by a lease."""
        tokens, root = _tokens(sequence, length), self._root(sequence)
        if length + self._state > room:
            return
        while self.used_tokens + length - match(root, tokens).length + self._state > room:
            if len(self._leased) == len(self._entries):
                return
            self.drop()
        try:
            node, size = grow(root, tokens, cache, self._layout, self._token_bytes)
        except Exception as error:
            self._fail(error)
            return
        self._roots[sequence.owner] = root
        self._entries[node] = sequence.owner
        self.used_tokens += size
        if self.used_tokens > room:  # it has more beside its tokens than was measured
            self._forget(node)

    def has(self, sequence: Sequence, length: int) -> bool:
        return self._at(sequence, length) is not None

    def shrink(self, room: int) -> None:
        """Give up the oldest until all take no more than `room` tokens."""
        while self.used_tokens > room and self._entries:
            self.drop()

    def lease(self, sequence: Sequence, length: int, terms: LeaseTerms) -> None:
        """Lease the sequence's snapshot of that length if it exists. Two leases never have the same snapshot."""
        node = self._at(sequence, length)
        if node is not None and node not in self._leased:
            self._leased.add(node)
            self.leases.grant(Lease(terms, length + self._state, node))

    def release_lease(self, node: Node) -> None:
        """Release a snapshot from its lease, so that it may be dropped like any other."""
        self._leased.discard(node)

    def drop(self) -> None:
        """Drop the least recently used snapshot; a leased one only if there is no other."""
        node = next((node for node in self._entries if node not in self._leased), None)
        while node is None:
            self.leases.evict()
            node = next((node for node in self._entries if node not in self._leased), None)
        self._forget(node)

    def _forget(self, node: Node) -> None:
        owner = self._entries.pop(node)
        self.used_tokens -= forget(node)
        if not self._roots[owner].children:
            del self._roots[owner]

    def _fail(self, error: Exception) -> None:
        """A copy could not be made, without which everything goes on, slower. Raises what is no want of memory."""
        if out_of_memory(error):
            self.shrink(0)
        elif not isinstance(error, Unlike):
            raise error
        logger.warning("A snapshot of a cache was not copied: %s.", first_line(error))

    def _at(self, sequence: Sequence, length: int) -> Node | None:
        """Where the sequence's tokens of that length have a snapshot."""
        matched = match(self._root(sequence), _tokens(sequence, length))
        return matched.node if matched.node.depth == length and matched.node.rest is not None else None

    def _root(self, sequence: Sequence) -> Node:
        return self._roots.get(sequence.owner) or Node()


def _tokens(sequence: Sequence, length: int) -> array[int]:
    return array(CODE, sequence.tokens[: max(0, length)])
