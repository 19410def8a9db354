"""Models that have SentencePiece's tokenizer.model and no tokenizer.json."""

import io
import json

import gguf
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine.detokenizer import TokenizerVocabulary
from agent_server.engine.protocol import Constraint
from agent_server.generation.grammar import GrammarBackend
from agent_server.model_files import UnusableFile, load_model_files

TEXTS = ["the cat sat on the mat", "hello world, how are you", "to be or not to be"] * 20


def train(place, kind, name, **changes):
    model = io.BytesIO()
    changes = {"vocab_size": 310, "byte_fallback": True, "hard_vocab_limit": False, **changes}
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


def streamed(tokenizer, ids, context=()):
    decoder = TokenizerVocabulary(tokenizer).detokenizer(context)
    return [decoder.push(token) for token in ids] + [decoder.flush()]


def test_ids_are_those_of_the_file(folder, files):
    for text in ("hello cat", "to be the world, not 🙂 Grüße"):
        assert files.tokenizer.encode(text, add_special_tokens=False).ids == pieces(folder).encode(text)
    assert files.tokenizer.token_to_id("</s>") in files.stop_token_ids
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


def test_pieces_that_are_likely_words(tmp_path):
    folder = train(tmp_path, "unigram", "T5Tokenizer", byte_fallback=False, vocab_size=60)
    tokenizer = load_model_files(folder).tokenizer
    ids = pieces(folder).encode("hello cat, the world")
    assert tokenizer.encode("hello cat, the world", add_special_tokens=False).ids == ids
    assert tokenizer.decode(ids) == "hello cat, the world"


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
