"""Where a model's reasoning begins and ends, for an engine that bounds it."""

import pytest

from agent_server.engine_protocol.protocol import Thought
from agent_server.models.prompting.thinking import thought_of
from events.formats import registry
from events.formats.output_format import OutputFormat
from events.parsing.machine import Parser
from events.parsing.pieces import ContentText, ReasoningText
from events.parsing.policy import Policy
from events.template.analyser import analyse
from tests.template.folder import own


def test_a_format_with_tags():
    found = thought_of(registry.named("hermes"), "<think>\n")
    assert found == Thought(opened=True, start=("<think>",), end=("</think>",), close="</think>")
    assert thought_of(registry.named("hermes"), "<think>\n\n</think>\n\n").opened is False


def test_a_format_whose_output_begins_with_reasoning():
    assert thought_of(registry.named("deepseek_r1"), "").opened is True


def test_a_format_that_has_messages_in_channels():
    found = thought_of(analyse(own("harmony")).output_format, "")
    assert found.start == ("analysis<|message|>",) and not found.opened
    assert found.close == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert thought_of(registry.named("openai"), "<|channel|>analysis<|message|>Hm").opened is True


def test_a_header_that_is_its_own_end():
    assert thought_of(registry.named("inkling"), "<|content_thinking|>").opened is True


def test_a_format_without_reasoning():
    assert thought_of(OutputFormat(), "") is None


@pytest.mark.parametrize("name", [name for name, each in registry.FORMATS.items() if each.reasoning])
def test_what_closes_a_thought_is_read_as_its_end(name: str):
    output_format = registry.FORMATS[name]
    found = thought_of(output_format, "")
    begun = found.start[0] if found.start else ""
    parser = Parser(output_format, Policy())
    pieces = [*parser.feed(f"{begun}Hm. Hm{found.close}Hello."), *parser.finish()]
    thought = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningText))
    said = "".join(piece.text for piece in pieces if isinstance(piece, ContentText))
    assert (thought.strip(), said.strip()) == ("Hm. Hm", "Hello.")
