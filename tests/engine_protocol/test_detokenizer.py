"""Text from token ids: characters over several tokens, spellings of special tokens, stop strings anywhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agent_server.engine_protocol.detokenizer import (
    ByteLevelDetokenizer,
    ByteVocabulary,
    OutputText,
    StopString,
    TokenizerVocabulary,
)


def byte_level_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    vocabulary["Ġwor"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken("in two words", special=False), AddedToken("ſ→é", special=False)])
    return tokenizer


def word_piece_tokenizer():
    """A SentencePiece-like decoder that strips the space before the first word, with byte fallback."""
    names = ["▁Hello", "▁world", "!", *[f"<0x{byte:02X}>" for byte in range(256)]]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


MODELS = Path(__file__).parents[2] / "agent_server" / "models"
BYTE_LEVEL = [byte_level_tokenizer(), Tokenizer.from_file(str(MODELS / "demo" / "tokenizer.json"))]
VOCABULARIES = {"bytes": ByteVocabulary(("<|im_end|>",)), "tokenizer": TokenizerVocabulary(byte_level_tokenizer())}


def texts(output, ids, **last):
    """Every token's own text, in order of release."""
    released = []
    for number, token_id in enumerate(ids, 1):
        released += output.push(token_id, last=number == len(ids))
        if output.stopped is not None:
            break
    return [token.text for token in released]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_character_appears_with_its_last_byte(name):
    vocabulary = VOCABULARIES[name]
    output = OutputText(vocabulary, (), (), 0)
    assert texts(output, vocabulary.encode("aé😀")) == ["a", "", "é", "", "", "", "😀"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_special_tokens_are_spelled_out(name):
    vocabulary = VOCABULARIES[name]
    assert texts(OutputText(vocabulary, (), (), 0), vocabulary.encode("a<|im_end|>")) == ["a", "<|im_end|>"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_bytes_that_never_become_a_character_are_flushed_with_the_last_token(name):
    vocabulary = VOCABULARIES[name]
    cut = vocabulary.encode("x😀")[:-1]
    assert "".join(texts(OutputText(vocabulary, (), (), 0), cut)).rstrip("\ufffd") == "x"
    assert texts(OutputText(vocabulary, (), (), 0), cut)[-1].endswith("\ufffd")


def test_broken_bytes_are_not_held_for_ever_and_later_text_is_right():
    vocabulary = VOCABULARIES["tokenizer"]
    lead = vocabulary.encode("é")[0]
    output = OutputText(vocabulary, (), (), 0)
    pieces = texts(output, [lead] * 100 + vocabulary.encode(" fine"))
    assert "".join(pieces) == "\ufffd" * 100 + " fine"
    assert pieces.index("f") == 101, "text is not delayed by what came before"


def test_the_space_after_the_prompt_is_kept():
    vocabulary = TokenizerVocabulary(word_piece_tokenizer())
    assert texts(OutputText(vocabulary, (0,), (), 0), [1, 2]) == [" world", "!"]
    assert texts(OutputText(vocabulary, (), (), 0), [1, 2]) == ["world", "!"]


def test_a_prompt_that_ends_within_a_character_is_not_repeated():
    vocabulary = VOCABULARIES["tokenizer"]
    prompt = vocabulary.encode("long prompt é")
    pieces = texts(OutputText(vocabulary, tuple(prompt[:-1]), (), 0), [prompt[-1], *vocabulary.encode("x")])
    assert "".join(pieces).strip("\ufffd") == "x"


def test_an_id_outside_the_vocabulary_adds_nothing():
    vocabulary = VOCABULARIES["tokenizer"]
    assert texts(OutputText(vocabulary, (), (), 0), [99999, *vocabulary.encode("ok")]) == ["", "o", "k"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_stop_string_over_token_boundaries_is_never_released(name):
    vocabulary = VOCABULARIES[name]
    output = OutputText(vocabulary, (), ("END",), 0)
    pieces = texts(output, vocabulary.encode("so EN so END more"))
    assert "".join(pieces) == "so EN so "
    assert output.stopped == "END"
    assert len(pieces) == len("so EN so END"), "the tokens of the stop string are reported, without its text"


def test_a_token_that_holds_more_than_the_stop_string_keeps_what_precedes_it():
    vocabulary = VOCABULARIES["tokenizer"]
    output = OutputText(vocabulary, (), ("or",), 0)
    merged = vocabulary.tokenizer.token_to_id("Ġwor")
    assert [token.text for token in output.push(merged)] == [" w"]
    assert output.stopped == "or"


def test_what_might_become_a_stop_string_is_released_when_it_does_not():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), ("ab",), 0)
    assert output.push(ord("a")) == []
    assert [token.text for token in output.push(ord("c"))] == ["a", "c"]


def test_the_stop_string_that_ends_first_counts_and_of_two_that_end_together_the_longer():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), ("cde", "bc", "abc"), 0)
    assert "".join(texts(output, vocabulary.encode("xabcde"))) == "x"
    assert output.stopped == "abc"


def test_no_stop_string_before_min_tokens():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), ("a",), 3)
    assert "".join(texts(output, vocabulary.encode("aaaaa"))) == "aaa"
    assert output.count == 4


def test_a_stop_token_is_reported_without_its_text():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), (), 0)
    assert [token.text for token in output.push(vocabulary.specials["<|im_end|>"], ends=True)] == [""]


def test_new_stop_strings_apply_to_text_that_waits():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), ("abX",), 0)
    assert output.push(ord("a")) == [] == output.push(ord("b"))
    output.restrict(("abc",), 0)
    assert "".join(token.text for token in output.push(ord("c"))) == ""
    assert output.stopped == "abc"


def test_stop_strings_that_are_taken_away_release_what_waits():
    vocabulary = VOCABULARIES["bytes"]
    output = OutputText(vocabulary, (), ("abX",), 0)
    assert output.push(ord("a")) == []
    output.restrict((), 0)
    assert [token.text for token in output.push(ord("b"))] == ["a", "b"]


@given(st.text("ab", min_size=1, max_size=6), st.text("ab", max_size=40))
def test_the_matcher_finds_what_find_finds(needle, text):
    stop = StopString(needle)
    ends = [index + 1 for index, character in enumerate(text) if stop.push(character)]
    assert ends == [end for end in range(len(text) + 1) if text[:end].endswith(needle)]


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_any_text_comes_out_whole_up_to_the_first_stop_string(text, stops):
    vocabulary = ByteVocabulary(())
    ends = {text.find(stop) + len(stop): stop for stop in sorted(stops, key=len) if stop in text}
    expected = text[: min(ends) - len(ends[min(ends)])] if ends else text
    output = OutputText(vocabulary, (), stops, 0)
    assert "".join(texts(output, vocabulary.encode(text))) == expected


@given(st.text(max_size=40))
def test_the_tokenizer_gives_back_any_text(text):
    vocabulary = VOCABULARIES["tokenizer"]
    assert "".join(texts(OutputText(vocabulary, (), (), 0), vocabulary.encode(text))) == text


@given(st.data(), st.sampled_from(BYTE_LEVEL))
def test_bytes_are_decoded_as_the_tokenizer_itself_decodes_them(data, tokenizer):
    """Whatever the ids say: characters in pieces, bytes that make none, added tokens that are not spelled in bytes."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size()), max_size=30))
    decoder = TokenizerVocabulary(tokenizer).detokenizer()
    assert isinstance(decoder, ByteLevelDetokenizer)
    text = "".join([*map(decoder.push, ids), decoder.flush()])
    assert text == tokenizer.decode(ids, skip_special_tokens=False)


@given(st.data(), st.sampled_from(BYTE_LEVEL))
def test_decoders_of_one_vocabulary_do_not_disturb_each_other(data, tokenizer):
    """They share what they learn of tokens, which must not depend on what stood before them."""
    vocabulary = TokenizerVocabulary(tokenizer)
    lists = data.draw(st.lists(st.lists(st.integers(0, tokenizer.get_vocab_size()), max_size=12), max_size=4))
    opened = [vocabulary.detokenizer() for _ in lists]
    texts = ["" for _ in lists]
    for place in range(12):
        for number, ids in enumerate(lists):
            texts[number] += opened[number].push(ids[place]) if place < len(ids) else ""
    found = [text + decoder.flush() for text, decoder in zip(texts, opened, strict=True)]
    assert found == [tokenizer.decode(ids, skip_special_tokens=False) for ids in lists]


def test_only_a_decoder_of_bytes_alone_is_taken_for_one():
    assert not isinstance(TokenizerVocabulary(word_piece_tokenizer()).detokenizer(), ByteLevelDetokenizer)


def test_characters_before_a_cut_one_are_not_shown_again():
    """A ByteFallback decoder shows all bytes of a run as U+FFFD where its last character is incomplete."""
    tokenizer = word_piece_tokenizer()
    ids = {byte: tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    hello, world = tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("▁world")
    cut = [hello, *(ids[byte] for byte in "é🙂".encode()), *(ids[byte] for byte in "🙂".encode()[:3])]
    pieces = texts(OutputText(TokenizerVocabulary(tokenizer), (), (), 0), cut)
    assert "".join(pieces) == "Helloé🙂" + "\ufffd" * 3
    pieces = texts(OutputText(TokenizerVocabulary(tokenizer), (), (), 0), [*cut, world])
    assert "".join(pieces) == "Helloé🙂" + "\ufffd" * 3 + " world", "nor where the answer goes on"
    whole = TokenizerVocabulary(tokenizer).detokenizer(cut)
    assert "".join([whole.push(world), whole.flush()]) == " world", "nor where the prompt ends within one"
