"""Grammars write exactly the text they ask for, whatever the tokenizer does to a prompt, and whatever its size is.

The kinds of tokenizers are those of Qwen (NFC), Llama 2 (a space in front of every text), Gemma (more tokens than the
model has rows) and T5 (Metaspace). Folders with real ones can be named in AGENT_SERVER_TEST_TOKENIZERS.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.constraint import ConstraintError
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.model_files import control_tokens
from tests.grammar.vocabulary import byte_fallback, byte_level

HARD = {
    "Ohm sign": "\u2126",
    "decomposed": "cafe\u0301",
    "Hangul jamo": "\u1112\u1161\u11ab",
    "singleton": "\u0344 \u212b",
    "ligature": "\ufb01",
    "spaces in front": "  two",
    "a space": " ",
    "spaces behind": "one  ",
    "lines": "\n\n\tx",
    "the character of spaces": "▁low▁▁",
    "a spelled control token": "a<|im_end|>b",
    "a spelled marker": "<td>x</td>",
    "the unknown token": "<unk>",
    "a byte token": "<0x41>",
    "outside of the plane": "🙂日本語",
}
CONTROLS = ("<|im_end|>", "<td>")


def copy_of(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(tokenizer.to_str())


def qwen() -> Tokenizer:
    tokenizer = copy_of(byte_level(CONTROLS))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def compatibility() -> Tokenizer:
    tokenizer = copy_of(byte_level(CONTROLS))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def llama() -> Tokenizer:
    tokenizer = copy_of(byte_fallback(CONTROLS))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def gemma() -> Tokenizer:
    tokenizer = copy_of(byte_fallback(CONTROLS))
    tokenizer.add_special_tokens([AddedToken("<image_soft_token>", special=True, normalized=False)])
    return tokenizer


def gemma_words() -> Tokenizer:
    """With Gemma's runs of spaces and its HTML tags, which its vocabulary defines."""
    spec = json.loads(byte_fallback(CONTROLS[:1]).to_str())
    known = len(spec["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    added = [*spec["added_tokens"]]
    first = max(token["id"] for token in added) + 1
    for number, word in enumerate(("▁▁", "▁▁▁▁", "<td>", "</td>", "\n\n"), max(first, known)):
        spec["model"]["vocab"][word] = number
        added.append({"id": number, "content": word, **flags})
    return Tokenizer.from_str(json.dumps({**spec, "added_tokens": added}))


def metaspace() -> Tokenizer:
    tokenizer = copy_of(byte_fallback(CONTROLS))
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="always"), decoders.ByteFallback()])
    return tokenizer


KINDS = {"NFC": (qwen, 0), "NFKC": (compatibility, 0), "Llama 2": (llama, 0), "Gemma 3": (gemma, 1),
         "Gemma's words": (gemma_words, 0), "Metaspace": (metaspace, 0)}  # fmt: skip
"""The tokenizer, and how many of its tokens the model has no row for."""
REAL = [Path(each) for each in os.environ.get("AGENT_SERVER_TEST_TOKENIZERS", "").split(os.pathsep) if each]


def written(backend: GrammarBackend, rows: int, tokenizer: Tokenizer, constraint: Constraint) -> str:
    """The text of the first tokens that every mask allows."""
    matcher = backend.compile(constraint).matcher()
    ids = list(tokenizer.encode("x", add_special_tokens=False).ids)
    before = tokenizer.decode(ids, skip_special_tokens=False)
    while not matcher.finished and len(ids) < 200:
        bits = torch.zeros((1, -(-rows // 32)), dtype=torch.int32)
        backend.fill([matcher], bits)
        allowed = np.flatnonzero(np.unpackbits(bits.numpy().view(np.uint8)[0], bitorder="little")[:rows])
        token = next((int(each) for each in allowed if each not in backend.ends), None)
        if token is None:
            assert matcher.accepting, "nothing may follow, and this is no end"
            break
        assert matcher.accept(token), matcher.error
        ids.append(token)
    return tokenizer.decode(ids, skip_special_tokens=False).removeprefix(before)


def backend_of(tokenizer: Tokenizer, rows: int) -> GrammarBackend:
    return GrammarBackend(tokenizer, rows, [max(each for each in control_tokens(tokenizer) if each < rows)])


def check(backend: GrammarBackend, tokenizer: Tokenizer, rows: int, text: str) -> None:
    schema = {
        "type": "object",
        "properties": {text: {"enum": [text]}},
        "required": [text],
        "additionalProperties": False,
    }
    assert written(backend, rows, tokenizer, Constraint(kind="choice", value=[text])) == text
    answer = written(backend, rows, tokenizer, Constraint(kind="json_schema", value=schema))
    assert json.loads(answer) == {text: text}


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_is_written_as_it_is(kind, text):
    make, without_rows = KINDS[kind]
    tokenizer = make()
    rows = tokenizer.get_vocab_size() - without_rows
    check(backend_of(tokenizer, rows), tokenizer, rows, HARD[text])


@pytest.mark.skipif(not REAL, reason="AGENT_SERVER_TEST_TOKENIZERS names no folders")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", REAL or [Path()], ids=lambda folder: folder.parent.parent.name or "none")
@pytest.mark.parametrize("more", [0, -1, 128])
def test_a_constant_is_written_as_it_is_with_real_tokenizers(folder, more):
    """more: rows of the model beside those of the tokenizer's tokens; Gemma 3 has one less, padded models more."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1 + more
    backend = backend_of(tokenizer, rows)
    for text in HARD.values():
        check(backend, tokenizer, rows, text)


def test_forced_text_has_the_tokens_that_the_model_was_trained_on():
    tokenizer = qwen()
    backend = GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [max(control_tokens(tokenizer))])
    matcher = backend.compile(Constraint(kind="choice", value=["The weather in Paris"])).matcher()
    for token in tokenizer.encode("The weather in Paris", add_special_tokens=False).ids:
        assert matcher.forced[0] == token and matcher.accept(token)


def test_a_tokenizer_whose_bytes_are_not_known_is_refused():
    tokenizer = copy_of(byte_level())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ConstraintError, match="its decoder is WordPiece"):
        GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [1])


def test_words_that_a_vocabulary_defines_can_be_written():
    tokenizer = gemma_words()
    backend = backend_of(tokenizer, tokenizer.get_vocab_size())
    matcher = backend.compile(Constraint(kind="json_schema", value={"type": "string"})).matcher()
    for token in ('"', "▁▁▁▁", "<td>", "▁▁", "</td>", '"'):
        assert matcher.accept(tokenizer.token_to_id(token)), token
