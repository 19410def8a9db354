"""A JSON string in which a model repeats itself is closed, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.generation.core.runaway import EVERY, WINDOW, repeats
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files

FILES = load_model_files(str(BUNDLED))
SIZE = FILES.tokenizer.get_vocab_size()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return GrammarBackend(FILES.tokenizer, SIZE, FILES.stop_token_ids)


def allowed(backend: GrammarBackend, constraint: Constraint, text: str) -> tuple[bool, set[str]]:
    """Whether a string was closed behind a text, and what may follow it then."""
    matcher = backend.compile(constraint).matcher()
    for token in FILES.tokenizer.encode(text, add_special_tokens=False).ids:
        assert matcher.accept(token)
    bits = torch.full((1, -(-SIZE // 32)), -1, dtype=torch.int32)
    backend.fill([matcher], bits)
    closed = backend.close_string(bits[0])
    places = [number for number in range(SIZE) if bits[0][number >> 5].item() >> (number & 31) & 1]
    return closed, {FILES.tokenizer.decode([number], skip_special_tokens=False) for number in places}


def test_a_string_is_left_by_what_begins_with_a_quote(backend: GrammarBackend):
    closed, following = allowed(backend, Constraint(kind="json_schema", value=SCHEMA), '{"a": "again and again')
    assert closed and '"' in following and all(text.startswith('"') for text in following)


@pytest.mark.parametrize("text", ['{"a": "x", "b": [1, 2', '{"a"', '{"a": "x\\'])
def test_other_places_of_an_object_are_left_alone(backend: GrammarBackend, text: str):
    closed, following = allowed(backend, Constraint(kind="json_schema", value=SCHEMA), text)
    assert not closed and following


def test_free_text_is_left_alone(backend: GrammarBackend):
    closed, following = allowed(backend, Constraint(kind="regex", value=r"(?s:.*)end"), "again and again")
    assert not closed and len(following) > SIZE / 2


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (list(range(WINDOW)), False),
        ([1, 2, 3, 4, 5] * WINDOW, True),
        ([*range(WINDOW), *([7] * (WINDOW // 2))], False),
        ([*range(WINDOW), *([7] * WINDOW)], True),
    ],
)
def test_what_repeats(tokens: list[int], found: bool):
    end = len(tokens) - len(tokens) % EVERY
    assert repeats(tokens, 0, end) is found


def test_a_look_begins_anew_behind_a_string_that_was_closed():
    assert not repeats([7] * 2 * WINDOW, WINDOW + EVERY, 2 * WINDOW)
