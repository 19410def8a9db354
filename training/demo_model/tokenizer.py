"""A tokenizer made for copying: a value is the same tokens wherever it stands.

Spaces, signs and quotes are never glued to the words of a value, numbers are cut
into pairs of digits from the left, and the fixed parts of JSON are single tokens.
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.demo_model.data_dialogues import DialogueFactory
from training.demo_model.data_tools import DEMO_TOOLS
from training.demo_model.render import END, START, render

VOCABULARY_SIZE = 1536
PADDING = "<|pad|>"
MARKERS = (
    PADDING,
    START,
    END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)
JSON_PARTS = (
    '", "status": "enabled"}',
    '", "status": "disabled"}',
    '","status":"enabled"}',
    '","status":"disabled"}',
    '{"description": "',
    '{"description":"',
    '{"name": "',
    '", "arguments": {"',
    '", "arguments": {}}',
    '": "',
    '":"',
    '": [',
    '":[',
    '": ',
    '":',
    '", "',
    '","',
    ', "',
    ',"',
    '"}}',
    '"]}}',
    '"}',
    '{"',
    '"string"',
    "linear-gradient(",
)
COMMON_WORD_LIST = (
    "a an the to of in on at is it i you and for with that this what how my me your user wants was "
    "were be by from as am are not no do can have has will would about so but or tell please show "
    "ask when want if your result feels like degrees they them there know"
)
COMMON_WORDS = COMMON_WORD_LIST.split()
TRAINING_DIALOGUES = 12000


def _pattern() -> str:
    fixed = sorted((*JSON_PARTS, *DEMO_TOOLS), key=len, reverse=True)
    words = sorted({*COMMON_WORDS, *(word.title() for word in COMMON_WORDS)}, key=len, reverse=True)
    pieces = [re.escape(part).replace('\\"', '"') for part in fixed]
    return "|".join([*pieces, f"(?:{'|'.join(words)}) ", r"\p{L}+", "[0-9]{1,2}", r"\n+", r"[^\p{L}0-9]"])


def _texts() -> Iterator[str]:
    factory = DialogueFactory("tokenizer")
    for dialogue in islice(factory.stream(), TRAINING_DIALOGUES):
        yield "".join(segment.text for segment in render(dialogue))
    always = [*JSON_PARTS, *DEMO_TOOLS, *(f"{word} " for word in COMMON_WORDS), "\n\n"]
    always += [f"{number:02d}" for number in range(100)]
    for part in always:
        yield "\n".join([part] * 20000)


def build() -> Tokenizer:
    """Train the tokenizer on generated dialogues."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pattern()), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def as_transformers(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Wrap the tokenizer for transformers, with the chat template."""
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    template = Path(__file__).parent / "chat_template.jinja"
    wrapped.chat_template = template.read_text(encoding="utf-8")
    return wrapped


def main() -> None:
    """Train the tokenizer and save it to a file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output", type=Path, help="path of the tokenizer.json to write")
    output = parser.parse_args().output
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(output))
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    print(f"{tokenizer.get_vocab_size()} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()
