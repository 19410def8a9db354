"""No call is read from texts that only show JSON, in formats with markers and in those without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from events.formats.registry import named
from events.parsing.policy import Policy
from events.translator import Translator
from events.vocabulary import Event, RunStarted, TextMessageContent, ToolCallStart
from tests.adapters.recorded import finished
from tests.adapters.wires import STREAMED, WHOLE
from tests.parsing.texts_without_calls import TEXTS, UNTUNED, Text


def test_there_are_enough_of_them():
    assert len(TEXTS) >= 300
    assert len({text.text for text in TEXTS}) == len(TEXTS)


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek_v3", "glm45", "lfm2", "llama3_json"])
@pytest.mark.parametrize("size", [7, 100_000])
def test_no_call_is_read(name: str, size: int):
    for text, events in translated(TEXTS, name, size):
        content = "".join(event.delta for event in events if isinstance(event, TextMessageContent))
        assert "".join(content.split()) == "".join(text.text.split()), text.source


@pytest.mark.parametrize("name", ["hermes", "llama3_json"])
def test_no_call_is_read_from_documentation_on_any_wire(name: str):
    assert len(UNTUNED) >= 300
    for text, events in translated(UNTUNED, name, 100_000):
        run = [RunStarted(thread_id="t", run_id="r"), *events, *finished("stop")]
        for read in (*STREAMED.values(), *WHOLE.values()):
            heard = read(run)
            assert (heard.calls, heard.end) == ((), "stop"), text.source
            assert "".join(heard.text.split()) == "".join(text.text.split()), text.source


def translated(texts: list[Text], name: str, size: int) -> Iterator[tuple[Text, list[Event]]]:
    """Each text with the events that it is read as; none of them is a call."""
    numbers = itertools.count()
    # In a format of bare JSON, a fitting call that begins the output is one as soon as its arguments begin.
    texts = [text for text in texts if name != "llama3_json" or text.text[0] not in "{["]
    assert len(texts) >= 300
    for text in texts:
        translator = Translator(
            named(name), tools=None, opened="", new_id=lambda kind: f"{kind}-{next(numbers)}",
            policy=Policy(tools=text.tools),
        )  # fmt: skip
        pieces = [text.text[at : at + size] for at in range(0, len(text.text), size)]
        events = [event for piece in pieces for event in translator.feed(piece)] + translator.finish()
        assert not [event for event in events if isinstance(event, ToolCallStart)], text.source
        yield text, events
