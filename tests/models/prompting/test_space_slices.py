"""Slices at spaces give the tokens of the whole text, for tokenizers in the manner of Llama 2, Mistral and Gemma."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from agent_server.models.prompting import encoding
from agent_server.models.prompting.encoding import LONG, SLICE, can_be_sliced, encoded
from agent_server.models.prompting.space_slices import SPACE, pieces, space_to_drop

TEXTS = ["the quick brown fox jumps over the lazy dog  and runs   away\nline two, isn't it? é"] * 50
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokenizer(kind: str) -> Tokenizer:
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bytes_of = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[*SPECIAL, *bytes_of], show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    replace = normalizers.Replace(" ", SPACE)
    if kind != "metaspace":
        made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if kind == "llama" else replace
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous") if kind == "gemma" else None  # type: ignore[assignment]
    return Tokenizer.from_str(made.to_str())


KINDS = {"llama": 1, "mistral": 0, "gemma": 0, "metaspace": 0}
MADE = {kind: tokenizer(kind) for kind in KINDS}
PARTS = st.sampled_from(
    ["the", " ", "  ", "fox", "<s>", "</s>", "\n", "▁", "é", "🦊", "a", ".", " jumps over", "\t", "9"]
)


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(PARTS, max_size=60), size=st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_the_tokens_are_those_of_the_whole_text(kind: str, parts: list[str], size: int):
    made, text, drop = MADE[kind], "".join(parts), KINDS[kind]
    assert space_to_drop(made) == drop
    found = [
        number for _, piece in pieces(text, size, drop) for number in made.encode(piece, add_special_tokens=False).ids
    ]
    assert found == made.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_encoded_in_slices_and_its_marked_tokens_keep_their_places(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    made = MADE[kind]
    text = "the quick brown fox jumps " * (LONG // 13) + "</s> over the lazy dog"
    marked = {made.token_to_id("</s>")}
    whole = encoded(made, text, marked=marked)
    sizes: list[int] = []
    read = encoding._read

    def noted(found: object, wanted: object) -> object:
        sizes.append(len(found))  # type: ignore[arg-type]
        return read(found, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "_read", noted)
    sliced = can_be_sliced(made)
    assert sliced and encoded(made, text, marked=marked, sliced=sliced) == whole
    assert len(sizes) > 5 and max(sizes) <= SLICE
    (span,) = whole.spans.values()
    assert text[slice(*span)] == "</s>"


def test_a_vocabulary_with_words_of_several_words_is_not_cut():
    described = json.loads(MADE["mistral"].to_str())
    described["model"]["vocab"][f"the{SPACE}fox"] = len(described["model"]["vocab"])
    assert space_to_drop(Tokenizer.from_str(json.dumps(described))) is None
    for token in (AddedToken("a b"), AddedToken("<x>", lstrip=True), AddedToken("word")):
        other = tokenizer("llama")
        other.add_tokens([token])
        assert space_to_drop(other) is None
    other = tokenizer("llama")
    other.normalizer = normalizers.Sequence([normalizers.NFKC(), other.normalizer])
    assert space_to_drop(other) is None


def test_a_text_without_a_place_to_cut_is_one_piece():
    assert list(pieces("x" * 50, 10, 1)) == [(0, "x" * 50)]
    assert list(pieces("", 10, 1)) == [(0, "")]
