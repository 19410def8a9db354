"""A prefix cache for models that create their own caches: snapshots of a cache at some length, in a radix tree.

Recurrent states, unlike keys, cannot be truncated to an earlier token, so a snapshot serves only prompts that contain
all of its tokens. Snapshots are taken where prompts are likely to diverge:

- where a generation ended, for a next turn that contains all of it;
- a little before the end of a prompt, for a next turn that does not: chat templates leave out the reasoning of earlier
  turns and the markers that opened it;
- where a prompt diverges from earlier ones, since the shared instructions and tools are likely to be used again.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from torch import Tensor

from agent_server.generation.faults import first_line, out_of_memory
from agent_server.generation.own_caches.cache_trees import (
    CacheLayout,
    DifferentLayouts,
    Path,
    rebuild,
    take_apart,
    tensor_bytes,
)
from agent_server.generation.scheduling.leases import Lease, Leases, LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence, common_prefix

CODE = "q"
"""The type code of token arrays: 64-bit integers, since a list would hold an object for each token."""


@dataclass(eq=False, slots=True)
class Node:
    """A node of the radix tree.

    edge: its tokens after those of its parent. depth: the number of tokens from the root to its end. grown: the entries
    of the edge's tokens in tensors that grow, by path. rest: the other parts of the cache at its end, None if no
    snapshot was taken there. size: the memory of `rest`, in tokens.
    """

    parent: Node | None = None
    edge: array[int] = field(default_factory=lambda: array(CODE))
    depth: int = 0
    grown: dict[Path, Tensor] = field(default_factory=dict)
    children: dict[int, Node] = field(default_factory=dict)
    rest: object | None = None
    size: int = 0

    def way(self) -> list[Node]:
        """Return the nodes on the path from the root, without the root, to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix of some tokens that is in the tree. node: the last node whose tokens all match. below: its
    child that matches partly, with `inside` tokens of its edge; None and 0 if there is none. last: the last matching
    node with a snapshot."""

    node: Node
    below: Node | None
    inside: int
    last: Node | None

    @property
    def length(self) -> int:
        return self.node.depth + self.inside


def match(root: Node, tokens: array[int]) -> Match:
    """Return how far the tree matches the tokens. Nodes that extend beyond them match partly."""
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
    """Add a snapshot: a copy of `cache`, which holds exactly these tokens. Return its node and the memory that it took,
    in tokens. If that fails, the tree is unchanged."""
    matched = match(root, tokens)
    node, below, inside = matched.node, matched.below, matched.inside
    edges = [each.grown for each in node.way()]
    upper: dict[Path, Tensor] = {}
    lower: dict[Path, Tensor] = {}
    if below is not None:
        # Divide the edge's tensors where the tokens diverge, each part in memory of its own.
        for path, tensor in below.grown.items():
            dim = layout.tokens[path]
            upper[path] = tensor.narrow(dim, 0, inside).clone()
            lower[path] = tensor.narrow(dim, inside, len(below.edge) - inside).clone()
        edges.append(upper)
    # A tensor whose earlier entries are not in the tree, such as that of a window that moved on, is copied whole.
    among = layout.grows.intersection(*edges)
    rest, grown = take_apart(layout, cache, len(tokens), matched.length, among)
    size = -(-tensor_bytes(rest) // token_bytes)
    if below is not None:
        node = Node(node, below.edge[:inside], node.depth + inside, upper, {below.edge[inside]: below})
        matched.node.children[below.edge[0]] = node
        below.parent, below.edge, below.grown = node, below.edge[inside:], lower
    if matched.length < len(tokens):
        node.children[tokens[matched.length]] = node = Node(node, tokens[matched.length :], len(tokens), grown)
    room = len(tokens) - matched.length + size - node.size
    node.rest, node.size = rest, size
    return node, room


def restored(node: Node, layout: CacheLayout) -> object:
    """Return a copy of the cache as it was when the node's snapshot was taken."""
    return rebuild(layout, node.rest, [each.grown for each in node.way()])


def forget(node: Node) -> int:
    """Drop a node's snapshot and the nodes that only led to it. Returns the number of tokens freed."""
    room = node.size
    node.rest, node.size = None, 0
    while node.rest is None and not node.children and node.parent is not None:
        room += len(node.edge)
        del node.parent.children[node.edge[0]]
        node = node.parent
    return room


logger = logging.getLogger("agent_server.generation")
LEAST = 32
"""The least number of tokens that a snapshot is worth."""
TAIL = 16
"""Tokens at the end of a prompt that the next turn may not contain: the template's opening of an answer."""


class Snapshots:
    """The snapshots of every owner, with the least recently used dropped first.

    room: the memory in tokens of `token_bytes` bytes. A snapshot's parts that do not grow count as tokens too; they
    take about `state`.
    """

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
        """Return the longest snapshot of a prefix of the sequence that leaves at least one token to compute."""
        node = match(self._root(sequence), _tokens(sequence, sequence.known - 1)).last
        if node is not None:
            self._entries.move_to_end(node)
        return node

    def restore(self, node: Node) -> object | None:
        """Return a cache to run on, made from the snapshot; None if there is no memory for it."""
        try:
            return restored(node, self._layout)
        except Exception as error:
            self._fail(error)
            return None

    def stops(self, sequence: Sequence, start: int) -> tuple[int, ...]:
        """Return the lengths at which to take snapshots of a prompt whose first `start` tokens are computed."""
        end = sequence.known
        # The prompt of a prefill-only request is known to be a prefix of the next turn's.
        before_end = sequence.terms is None and end - TAIL - start >= 2 * LEAST
        last = end - TAIL if before_end else end
        shared = match(self._root(sequence), _tokens(sequence, end - 1)).length
        stops = {last}
        if shared - start >= LEAST and shared <= last:
            stops = {shared, last} if last - shared >= LEAST else {shared}
        return tuple(sorted(stop for stop in stops if stop - start >= LEAST))

    def keep(self, sequence: Sequence, length: int, cache: object, room: int) -> None:
        """Take a snapshot of the sequence's cache, which holds `length` tokens. All snapshots together may take `room`
        tokens; older ones are dropped for it, but none under a lease."""
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
        if self.used_tokens > room:  # its state is larger than the measured one
            self._forget(node)

    def has(self, sequence: Sequence, length: int) -> bool:
        return self._at(sequence, length) is not None

    def shrink(self, room: int) -> None:
        """Drop the least recently used snapshots until the others take at most `room` tokens."""
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
        """Log that a cache could not be copied, which only costs time. After an out-of-memory error, drop all
        snapshots. Raises any other error than that and DifferentLayouts."""
        if out_of_memory(error):
            self.shrink(0)
        elif not isinstance(error, DifferentLayouts):
            raise error
        logger.warning("A snapshot of a cache was not copied: %s.", first_line(error))

    def _at(self, sequence: Sequence, length: int) -> Node | None:
        """Return the snapshot of exactly the sequence's first `length` tokens."""
        matched = match(self._root(sequence), _tokens(sequence, length))
        return matched.node if matched.node.depth == length and matched.node.rest is not None else None

    def _root(self, sequence: Sequence) -> Node:
        return self._roots.get(sequence.owner) or Node()


def _tokens(sequence: Sequence, length: int) -> array[int]:
    return array(CODE, sequence.tokens[: max(0, length)])
