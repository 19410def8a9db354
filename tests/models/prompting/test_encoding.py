"""Long texts: refused by their length before they are encoded, and encoded with the interpreter free."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import ModelFiles
from agent_server.models.prompting import encoding
from agent_server.models.prompting.encoding import LONG, SHORT, can_be_sliced, characters_per_token, encoded
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.settings import PromptSettings
from events.options import GenerationOptions
from tests.models.prompting.tokenizers_for_tests import byte_level, sentence_pieces, unigram_with_markers

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


class Watched:
    """A tokenizer that notes how long the texts are that it encodes, and in which of the two ways."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.holding: list[int] = []
        self.free: list[int] = []

    def encode(self, text: str, **options: Any) -> Any:
        self.holding.append(len(text))
        return self._tokenizer.encode(text, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.free += map(len, texts)
        return self._tokenizer.encode_batch(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def watched(context: int) -> tuple[PromptBuilder, Watched]:
    tokenizer = Watched(byte_level())
    files = ModelFiles(tokenizer=tokenizer, templates={"default": TEMPLATE})  # type: ignore[arg-type]
    return PromptBuilder(files, PromptSettings(context_length=context)), tokenizer


def asked(text: str) -> RunAgentInput:
    message = {"id": "1", "role": "user", "content": text}
    return RunAgentInput(
        thread_id="t", run_id="r", messages=[message], tools=[], context=[], state={}, forwarded_props={}
    )


@pytest.mark.parametrize("text", [" " * 3_900_000, "</s>" * 50_000, "a" * 1_000_000], ids=["spaces", "marks", "a"])
def test_what_cannot_fit_is_refused_before_it_is_encoded(text: str):
    prompts, tokenizer = watched(context=1000)
    tokenizer.holding.clear()
    with pytest.raises(EngineError) as refused:
        prompts.build(asked(text), GenerationOptions())
    assert refused.value.kind == "context_length_exceeded" and "1000 tokens" in refused.value.message
    with pytest.raises(EngineError):
        prompts.build(asked("Hi"), GenerationOptions(raw_prompt=text))
    assert max([*tokenizer.holding, *tokenizer.free], default=0) <= SHORT


def test_long_text_is_encoded_with_the_interpreter_free():
    prompts, tokenizer = watched(context=1_000_000)
    text = "a </s> b " * 2000
    made = prompts.build(asked(text), GenerationOptions())
    assert prompts.detokenize(made.token_ids) == made.text and text in made.text
    prompts.tokenize(text)
    prompts.tokenize(text, parse_control_tokens=False)
    prompts.build(asked("Hi"), GenerationOptions(raw_prompt=text))
    assert max(tokenizer.holding) <= SHORT and max(tokenizer.free) > len(text) - 1


@pytest.mark.parametrize("size", [1, SHORT, SHORT + 1, LONG + 1])
@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_every_way_gives_the_same_ids(make: Any, size: int):
    tokenizer = make()
    text = ("the <|im_end|> fox 東京 " * size)[:size]
    assert encoded(tokenizer, text).ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_one_very_long_text_at_a_time():
    tokenizer = byte_level()
    with encoding._long_text_lock:
        with pytest.raises(EngineError) as refused:
            encoded(tokenizer, "a b " * LONG)
        assert encoded(tokenizer, "a b " * 1000)
    assert (refused.value.kind, refused.value.retryable) == ("overloaded", True)
    assert encoded(tokenizer, "a b " * (LONG // 4 + 1)) and not encoding._long_text_lock.locked()


def composing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


BOUNDED = {each.__name__: (each(), characters_per_token(each())) for each in (byte_level, sentence_pieces, composing)}
TEXTS = st.lists(
    st.sampled_from([" ", "a", "the ", "\n\n\n", "<|im_start|>", "東", "ᾧ", "e\u0301", "\U0001f600", "[INST]"])
)


@pytest.mark.parametrize("name", BOUNDED)
@given(parts=TEXTS, text=st.text(), repeated=st.integers(1, 30))
def test_no_token_stands_for_more_characters_than_said(name: str, parts: list[str], text: str, repeated: int):
    tokenizer, most = BOUNDED[name]
    assert most is not None
    for each in ("".join(parts) * repeated, text * repeated):
        assert len(encoded(tokenizer, each).ids) * most >= len(each)


def changed(change: Any) -> Tokenizer:
    tokenizer = byte_level()
    change(tokenizer)
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        unigram_with_markers(),
        changed(lambda made: made.add_special_tokens([AddedToken("<|x|>", rstrip=True)])),
        changed(lambda made: setattr(made, "normalizer", normalizers.Strip())),
        changed(lambda made: setattr(made, "normalizer", normalizers.Replace("  ", " "))),
        changed(lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.WhitespaceSplit())),
        Tokenizer(models.BPE({"a": 0}, [])),
    ],
    ids=["unigram", "rstrip", "strip", "replace", "split", "no bytes"],
)
def test_where_text_may_vanish_there_is_no_bound(tokenizer: Tokenizer):
    assert characters_per_token(tokenizer) is None


def split_by(pattern: str) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SLICED = {"gpt2": byte_level, "qwen": lambda: split_by(QWEN), "composing": composing}
MARKED = frozenset(range(490, 520))


@pytest.mark.parametrize("name", SLICED)
@given(parts=TEXTS, text=st.text(), seed=st.randoms(use_true_random=False), size=st.integers(150, 700))
def test_slices_give_the_same_tokens_at_the_same_places(name: str, parts: list[str], text: str, seed: Any, size: int):
    tokenizer = SLICED[name]() if name not in MADE else MADE[name]
    MADE[name] = tokenizer
    assert can_be_sliced(tokenizer)
    pieces = [*parts, *text, *TEXT_PIECES] * 20
    seed.shuffle(pieces)
    whole = "".join(pieces)
    expected = encoded(tokenizer, whole, marked=MARKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "SLICE", size)
        patch.setattr(encoding, "LONG", 1)
        patch.setattr(encoding, "SHORT", 0)
        assert encoded(tokenizer, whole, marked=MARKED, sliced=True) == expected


MADE: dict[str, Tokenizer] = {}
TEXT_PIECES = ["the ", "fox's", "  ", "\n", "1234", "<|im_end|>", "<tool_call>", "東京", "e\u0301", ", ", "x" * 40]


def test_a_long_text_is_never_encoded_at_once_where_it_can_be_sliced(monkeypatch: pytest.MonkeyPatch):
    """What is encoded at once is read and freed with the interpreter's lock held."""
    monkeypatch.setattr(encoding, "LONG", 4096)
    monkeypatch.setattr(encoding, "SLICE", 4096)
    prompts, tokenizer = watched(context=1_000_000)
    prompts.build(asked("the quick </s> fox " * 20_000), GenerationOptions())
    assert max(tokenizer.free) <= 4096 < 20_000


@pytest.mark.parametrize(
    "tokenizer",
    [
        sentence_pieces(),
        unigram_with_markers(),
        split_by(r"(?<=a) |\w+"),
        split_by(r"\bx|\w+"),
        changed(lambda made: made.add_special_tokens([AddedToken("<|x|>", single_word=True)])),
        changed(lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True))),
        changed(lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.ByteLevel(False, use_regex=False))),
    ],
    ids=["sentence pieces", "unigram", "behind", "boundary", "single word", "prefix space", "one word"],
)
def test_what_depends_on_the_text_before_it_is_not_sliced(tokenizer: Tokenizer):
    assert not can_be_sliced(tokenizer)
