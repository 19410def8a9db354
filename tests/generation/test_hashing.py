"""What is cached is found by the hashes of its blocks: a later turn hashes its new tokens alone, to the same hashes."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.generation.scheduling import pages, slabs
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.slabs import BLOCK, SlabMemory, block_keys

PAGE = 4
KEY = ("", "run")
TURNS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.booleans()), min_size=1, max_size=6)
"""Of a conversation: tokens that the next prompt leaves out at the end of what was there, new ones, another salt."""


def taken(memory: PagedMemory | SlabMemory, tokens: list[int], number: int, salt: str = "") -> Sequence:
    """A sequence that was admitted and whose tokens are all computed and published."""
    place = Sequence(
        number, list(tokens), len(tokens), len(tokens) + 1, lease_key=KEY, salt=salt, terms=LeaseTerms(KEY, until=60.0)
    )
    assert memory.admit(place, alone=True) is not None
    place.computed = len(tokens)
    memory.publish(place)
    return place


def conversation(turns: list[tuple[int, int, bool]]) -> list[tuple[list[int], str]]:
    tokens: list[int] = []
    prompts = []
    fresh = count(1000)
    for dropped, added, salted in turns:
        tokens = tokens[: len(tokens) - min(dropped, len(tokens))] + [next(fresh) for _ in range(added)]
        prompts.append((tokens, "salt" if salted else ""))
    return prompts


@given(TURNS)
def test_pages_have_the_hashes_of_the_whole(turns: list[tuple[int, int, bool]]):
    memory = PagedMemory(600, PAGE)
    for number, (tokens, salt) in enumerate(conversation(turns)):
        sequence = taken(memory, tokens, number, salt)
        found = memory.holdings[number].hashes[: len(tokens) // PAGE]
        alone = PagedMemory(600, PAGE)
        taken(alone, tokens, number, salt)
        assert found == alone.holdings[number].hashes[: len(tokens) // PAGE]
        memory.release(sequence, sequence.terms)


@given(TURNS)
def test_slabs_have_the_keys_of_the_whole(turns: list[tuple[int, int, bool]]):
    memory = SlabMemory(4096)
    for number, (tokens, salt) in enumerate(conversation(turns)):
        sequence = taken(memory, tokens, number, salt)
        slab = memory.slab(sequence)
        assert slab.keys == list(block_keys(sequence.owner, tokens, len(tokens), []))
        memory.release(sequence, sequence.terms)


@pytest.mark.parametrize("kind", ["pages", "slabs"])
def test_a_later_turn_hashes_its_new_tokens_alone(kind: str, monkeypatch: pytest.MonkeyPatch):
    made: list[object] = []
    real = {"pages": pages.blake2b, "slabs": hash}[kind]

    def counted(*given: object, **more: object) -> object:
        made.append(given)
        return real(*given, **more)

    if kind == "pages":
        monkeypatch.setattr(pages, "blake2b", counted)
    else:
        monkeypatch.setattr(slabs, "hash", counted, raising=False)
    memory = PagedMemory(200, BLOCK) if kind == "pages" else SlabMemory(4096)
    first = taken(memory, list(range(20 * BLOCK)), 1)
    memory.release(first, first.terms)
    assert len(made) >= 20
    made.clear()
    later = taken(memory, list(range(22 * BLOCK + 1)), 2)
    assert 2 <= len(made) <= 3, "a slab's first block that is not found is made once to be looked for"
    memory.release(later, later.terms)
