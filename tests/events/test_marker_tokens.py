"""Markers that are single tokens count by id, the ends of calls among them."""

import itertools

from events.formats.output_format import OutputFormat, Tools
from events.translator import Translator
from events.vocabulary import TextMessageContent, ToolCallArgs

FORMAT = OutputFormat(tools=Tools(style="json", call_start="<tool_call>\n", call_end="\n</tool_call>"))
MARKERS = {"<tool_call>": 5, "</tool_call>": 6}


def test_the_end_of_a_call_is_a_token() -> None:
    counter = itertools.count()
    translator = Translator(
        FORMAT, tools=None, opened="", new_id=lambda kind: f"{kind}{next(counter)}", marker_ids=MARKERS
    )
    pieces = [("<tool_call>", 5), ('\n{"name": "f", "arguments": {"a": 1', 9), ("}}\n", 9), ("</tool_call>", 6)]
    events = [event for text, token in pieces for event in translator.feed(text, token)] + translator.finish()
    assert "".join(event.delta for event in events if isinstance(event, ToolCallArgs)) == '{"a": 1}'
    assert not [event for event in events if isinstance(event, TextMessageContent)]
