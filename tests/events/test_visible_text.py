"""The tokens of a text: joined, they are the text that the reader gets, however the output was cut into tokens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from events.delivery import joined
from events.formats.registry import FORMATS, named
from events.metadata import Scored, tokens_of, visible_tokens
from events.translator import Translator
from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs
from tests.properties.outputs import random_output

TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]
DELTAS = (TextMessageContent, ReasoningMessageContent, ToolCallArgs)


def rows(texts: list[str]) -> list[Scored]:
    return [(number, text, -0.5, []) for number, text in enumerate(texts)]


def fed(translator: Translator, texts: list[str], **end: Any) -> list[Event]:
    events = [event for row in rows(texts) for event in translator.feed(row[1], None, row)]
    return events + translator.finish(**end)


def translator(name: str, **settings: Any) -> Translator:
    counter = itertools.count(1)
    given = {"tools": TOOLS, "opened": "", "new_id": lambda kind: f"{kind}-{next(counter)}", **settings}
    return Translator(named(name), **given)


def visible(events: list[Event], kind: type[Event]) -> list[str]:
    return [row[1] for event in events if isinstance(event, kind) for row in visible_tokens(event.metadata)]  # type: ignore[attr-defined]


def text_of(events: list[Event], kind: type[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, kind))  # type: ignore[attr-defined]


def cut_to_tokens(text: str, generator: random.Random) -> list[str]:
    """The text cut at random; a token without text stands for one that ends within a character."""
    texts, position = [], 0
    while position < len(text):
        size = generator.choice((0, 1, 1, 2, 3, 5, 8))
        texts.append(text[position : position + size])
        position += size
    return texts


def test_control_text_is_no_part_of_the_text():
    t = translator("hermes")
    texts = ["<think>", "\n", "Br", "est", "?\n", "</think>", "\n\n", "One", " mo", "ment.", "\n<tool", "_call>\n"]
    texts += ['{"name": "tide", "arguments"', ': {"port": "One moment."}}', "\n</tool_call>", "\nDone", ".", "\n"]
    events = fed(t, texts)
    assert visible(events, ReasoningMessageContent) == ["Br", "est", "?"]
    assert visible(events, TextMessageContent)[:3] == ["One", " mo", "ment."]
    assert (
        "".join(visible(events, TextMessageContent)) == text_of(events, TextMessageContent) == "One moment.\n\nDone.\n"
    )
    ids = [row[0] for event in events if isinstance(event, DELTAS) for row in tokens_of(event.metadata)]
    assert ids + [row[0] for row in t.unsent] == list(range(len(texts)))


def test_a_token_in_two_texts_has_its_part_in_each():
    events = fed(translator("hermes"), ["<think>Br", "est?</think>\n\nOne", " moment."])
    assert visible(events, ReasoningMessageContent) == ["Br", "est?"]
    assert visible(events, TextMessageContent) == ["One", " moment."]


def test_the_rest_of_a_token_belongs_to_the_next_one():
    """So each token is listed once, and the sum of the log probabilities is the text's."""
    t = translator("hermes")
    events = fed(t, ["One ", "mo", "ment. "])
    listed = [
        row for event in events if isinstance(event, TextMessageContent) for row in visible_tokens(event.metadata)
    ]
    assert [(row[0], row[1], row[2]) for row in listed] == [
        (0, "One", -0.5),
        (1, " mo", -0.5),
        (2, "ment.", -0.5),
        (2, " ", 0.0),
    ]


def test_text_that_only_began_like_a_call_has_its_tokens():
    events = fed(translator("hermes"), ["Such as ", "<tool", "_", "call ", "or", " so"])
    assert "".join(visible(events, TextMessageContent)) == "Such as <tool_call or so"


def test_a_special_token_that_is_left_out_is_no_part_of_the_text():
    t = translator("hermes", hidden={7: "<|im_end|>"})
    events = t.feed("Yes", 1, (1, "Yes", -0.5, [])) + t.feed("<|im_end|>", 7, (7, "<|im_end|>", -0.5, []))
    events += t.feed("!", 2, (2, "!", -0.5, [])) + t.finish()
    assert visible(events, TextMessageContent) == ["Yes", "!"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("delivery", ["immediate", "adaptive"])
def test_joined_tokens_are_the_text(name: str, delivery: str) -> None:
    place = list(FORMATS).index(name)
    for seed in range(60):
        generator = random.Random(f"{name} {seed}")
        output = random_output(place, generator)
        assert output.name == name
        if FORMATS[name].content.prefix:
            continue
        policy = msgspec.structs.replace(output.policy, failed=None)
        t = translator(name, tools=None, policy=policy, opened=output.opened, delivery=delivery)
        texts = cut_to_tokens(output.text.replace("\ud800", "?"), generator)
        events = fed(t, texts, reason=generator.choice(("stop", "length")))
        events = joined(events) if seed % 2 else events
        for kind in (TextMessageContent, ReasoningMessageContent):
            # White space at the end of an answer may be older than a call or reasoning that followed it.
            shown, text = "".join(visible(events, kind)).rstrip(), text_of(events, kind).rstrip()
            # A call that the prompt has begun and that is none is shown with the prompt's part, which has no tokens.
            assert text.endswith(shown) if output.opened else text == shown, (seed, kind, texts)
        ids = [row[0] for event in events if isinstance(event, DELTAS) for row in tokens_of(event.metadata)]
        assert ids + [row[0] for row in t.unsent] == list(range(len(texts)))
