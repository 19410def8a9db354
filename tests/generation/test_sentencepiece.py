"""Models that have SentencePiece's tokenizer.model and no tokenizer.json."""

import io
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.model_files import UnusableFile, load_model_files
from tests.hard_strings import STRINGS

REAL = [Path(each) for each in os.environ.get("AGENT_SERVER_TEST_SENTENCEPIECE", "").split(os.pathsep) if each]
TEXTS = ["the cat sat on the mat", "hello world, how are you", "to be or not to be"] * 20


def train(place, kind, name, **changes):
    model = io.BytesIO()
    changes = {"vocab_size": 310, "byte_fallback": True, "hard_vocab_limit": False, **changes}
    changes = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, **changes}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, model_type=kind, minloglevel=5, **changes
    )
    (place / "tokenizer.model").write_bytes(model.getvalue())
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "extra_ids": 0}))
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 77}))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train(tmp_path_factory.mktemp("bpe"), "bpe", "LlamaTokenizer")


def pieces(folder):
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.fixture(scope="module")
def files(folder):
    return load_model_files(folder)


def hard_strings(model):
    """Those that spell none of its control tokens, which SentencePiece reads as text."""
    controls = [number for number in range(model.vocab_size()) if model.is_control(number) or model.is_unknown(number)]
    spelled = [model.id_to_piece(number) for number in controls]
    return [text for text in STRINGS if not any(each in text for each in spelled)]


def streamed(tokenizer, ids, context=()):
    decoder = TokenizerVocabulary(tokenizer).detokenizer(context)
    return [decoder.push(token) for token in ids] + [decoder.flush()]


def test_ids_are_those_of_the_file(folder, files):
    for text in ("hello cat", "to be the world, not 🙂 Grüße"):
        assert files.tokenizer.encode(text, add_special_tokens=False).ids == pieces(folder).encode(text)
    assert files.tokenizer.token_to_id("</s>") in files.stop_token_ids
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert files.tokenizer.encode("cat").tokens[0] == "<s>", "what the model learned from began so"
    assert files.context_length == 77


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffd▁"), min_size=1, max_size=20))
def test_streamed_text_is_the_text_and_no_character_is_cut(files, text):
    context = files.tokenizer.encode("hello", add_special_tokens=False).ids
    ids = files.tokenizer.encode("hello " + text, add_special_tokens=False).ids
    found = streamed(files.tokenizer, ids[len(context) :], context) if ids[: len(context)] == context else []
    whole = files.tokenizer.decode(ids, skip_special_tokens=False)
    assert not found or "hello" + "".join(found) == whole
    assert "\ufffd" not in whole


def test_bytes_of_a_character_wait_for_its_last(files):
    ids = files.tokenizer.encode("cat 🙂", add_special_tokens=False).ids
    assert [text for text in streamed(files.tokenizer, ids[-4:], ids[:-4]) if text] == ["🙂"]
    assert set("".join(streamed(files.tokenizer, ids[-4:-1], ids[:-4]))) == {"\ufffd"}


DEFAULTS = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}
"""Of SentencePiece's trainer."""


@pytest.mark.parametrize("changes", [{}, DEFAULTS], ids=["Llama's", "the trainer's"])
def test_pieces_that_are_likely_words(changes, tmp_path, caplog):
    folder = train(tmp_path, "unigram", "LlamaTokenizer", byte_fallback=False, vocab_size=60, **changes)
    tokenizer = load_model_files(folder).tokenizer
    for text in (*hard_strings(pieces(folder)), "hello cat, the world"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == pieces(folder).encode(text)
    assert tokenizer.decode(pieces(folder).encode("hello cat, the world")) == "hello cat, the world"
    assert ("precompiled_charsmap" in caplog.text) == bool(changes), "what may differ is said"


def test_a_later_text_has_no_space_where_the_settings_say_so(tmp_path, caplog):
    folder = train(tmp_path, "bpe", "LlamaTokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": False}))
    tokenizer, model = load_model_files(folder).tokenizer, pieces(folder)
    ids = tokenizer.encode("</s>hello", add_special_tokens=False).ids
    assert not model.id_to_piece(ids[1]).startswith("▁")
    assert tokenizer.decode(model.encode("hello cat")) == "hello cat"
    assert "texts that begin with a space have other tokens" in caplog.text


def test_what_cannot_be_encoded_alike_is_refused(tmp_path):
    folder = train(tmp_path, "bpe", "LlamaTokenizer", treat_whitespace_as_suffix=True)
    with pytest.raises(UnusableFile, match=r"is of a kind of SentencePiece's that is not read; serve a folder with a"):
        load_model_files(folder)


@pytest.mark.skipif(not REAL, reason="AGENT_SERVER_TEST_SENTENCEPIECE names no files")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_files_are_encoded_as_sentencepiece_does(path, tmp_path):
    """Such as those of mistral-common and of SentencePiece's own tests, from PyPI."""
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    tokenizer, model = load_model_files(tmp_path).tokenizer, pieces(tmp_path)
    for text in hard_strings(model):
        ids = model.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        if model.unk_id() not in ids:
            assert tokenizer.decode(ids, skip_special_tokens=False) == model.decode(ids)


def test_a_gguf_file_with_such_a_tokenizer(folder, tmp_path):
    model = pieces(folder)
    numbers = range(model.vocab_size())
    kinds = [2 if model.is_unknown(n) else 3 if model.is_control(n) else 6 if model.is_byte(n) else 1 for n in numbers]
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(number) for number in numbers])
    writer.add_token_scores([model.get_score(number) for number in numbers])
    writer.add_token_types(kinds)
    writer.add_eos_token_id(model.eos_id())
    writer.add_tensor("x.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = load_model_files(tmp_path / "tiny.gguf")
    for text in ("hello cat", "to be the world, not 🙂 Grüße"):
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == model.encode(text)
    assert found.stop_token_ids == (model.eos_id(),) and found.special_tokens == {"eos_token": "</s>"}


def test_output_can_be_constrained(files):
    """The grammar knows that a character may come as its bytes."""
    size = files.tokenizer.get_vocab_size()
    backend = GrammarBackend(files.tokenizer, size, list(files.stop_token_ids))
    matcher = backend.compile(Constraint(kind="regex", value="(cat|be) 🙂")).matcher()
    ids = files.tokenizer.encode("cat 🙂", add_special_tokens=False).ids
    assert [matcher.accept(token) for token in ids[-4:]] == [False] * 4
    matcher = backend.compile(Constraint(kind="regex", value="🙂")).matcher()
    assert all(matcher.accept(token) for token in ids[-4:]) and matcher.accepting


BROKEN = {
    "random bytes": (b"\x12\x34" * 99, "{} is not a tokenizer of SentencePiece's; download it again."),
    "empty": (b"", "{} is empty; download it again."),
    "a Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n",
        "{} is a pointer of Git LFS instead of the file: run `git lfs pull` in {folder}.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_none_is_said_in_one_sentence(case, tmp_path):
    content, sentence = BROKEN[case]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnusableFile) as failure:
        load_model_files(tmp_path)
    assert str(failure.value) == sentence.replace("{}", str(path)).replace("{folder}", str(tmp_path))
