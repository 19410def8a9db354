"""What tests of grammars in the core share."""

from collections.abc import Iterator

import pytest

from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.grammar import GrammarBackend
from tests.generation.tiny_models import make_model, make_tokenizer


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    tokenizer = make_tokenizer()
    made = Compiler(
        GrammarBackend(tokenizer, make_model("llama").config.vocab_size, [tokenizer.token_to_id("<|im_end|>")])
    )
    yield made
    made.close()
