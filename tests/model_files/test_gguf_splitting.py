"""How GGUF files split text into words, by the names that llama.cpp gives the rules."""

from __future__ import annotations

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from agent_server.model_files.gguf_tokenizer import SPLITTINGS

TEXT = "Hello, World's 12345 tests!!\n\n  你好世界 def f(x):\n\treturn x+1 über हिन्दी 3.14 한국어 테스트   "


def words(name: str, text: str) -> list[str]:
    splits = [Split(Regex(pattern), "isolated") for pattern in SPLITTINGS[name].splits]
    return [word for word, _ in Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", SPLITTINGS)
def test_every_rule_keeps_all_of_a_text(name: str) -> None:
    assert "".join(words(name, TEXT)) == TEXT
    assert len(words(name, TEXT)) > 5


@pytest.mark.parametrize(
    ("name", "text", "split"),
    [
        ("qwen2", "in 12345 हिन्दी", ["in", " ", "1", "2", "3", "4", "5", " ह", "िन", "्द", "ी"]),
        ("deepseek-coder", "in 123!\n\n", ["in", " ", "1", "2", "3", "!", "\n", "\n"]),
        ("deepseek-llm", "in 123!\n\n", ["in", " ", "123", "!", "\n", "\n"]),
        ("tiny_aya", "in 12345", ["in", " ", "12", "345"]),
        ("minicpm5", "in 12345", ["in", " ", "123", "45"]),
        ("k2-horizon", "in हिन्दी\u200d!", ["in", " हिन्दी\u200d", "!"]),
        ("exaone-moe", "two words 12", ["two words", " ", "1", "2"]),
        ("laguna", "end.\n\nbegin", ["end", ".", "\n\n", "begin"]),
        ("spark2_5", "end.\n\n12", ["end", ".", "\n", "\n", "1", "2"]),
        ("youtu", "두 words 中文", ["두", " words", " ", "中文"]),
    ],
)
def test_words(name: str, text: str, split: list[str]) -> None:
    assert words(name, text) == split
