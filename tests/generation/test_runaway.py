"""A JSON string in which a model repeats itself is closed, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch

from agent_server.engine_protocol.protocol import Constraint
from agent_server.engine_protocol.repetition import EVERY, WINDOW, is_repetitive
from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.generation.harness import Driver
from tests.generation.tiny_models import make_model

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
        ([7] * (WINDOW - 1), False),
        ([1, 2, 3, 4, 5] * WINDOW, True),
        ([*range(WINDOW), *([7] * (WINDOW // 2))], False),
        ([*range(WINDOW), *([7] * WINDOW)], True),
    ],
)
def test_what_repeats(tokens: list[int], found: bool):
    assert is_repetitive(tokens) is found


@pytest.mark.parametrize("guesses", [0, 3, 7, 16])
def test_a_string_is_closed_whatever_a_step_accepts(backend: GrammarBackend, guesses: int):
    """In a loop, drafts are accepted whole, so that steps of several tokens pass any given length."""
    again = FILES.tokenizer.token_to_id("a")
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    compiler = Compiler(backend)
    driver = Driver(make_model("llama", vocab_size=SIZE), compiler=compiler)
    number = driver.submit(
        [9, 10, 11],
        max_tokens=600,
        constraint=Constraint(kind="json_schema", value=schema),
        logit_bias={again: 90.0},
        num_speculative_tokens=guesses,
        ignore_eos=False,
        stop_token_ids=(FILES.stop_token_ids[0],),
    )
    driver.finish()
    compiler.close()
    end = driver.end(number)
    assert end.reason == "stop" and end.closed_string
    assert WINDOW < end.usage.completion_tokens <= WINDOW + EVERY + 2 * (guesses + 1)
