"""Outputs made of messages with headers (harmony), as nodes.

A message is `start` CHANNEL `header_end` BODY; what is no call ends with the first of `end`, behind which the next
message's header begins as the prompt's did. A call names its recipient in the header, and its end marker ends the
output.
"""

from __future__ import annotations

from collections.abc import Sequence

from events.formats.output_format import Channels, OutputFormat
from events.grammar.call_nodes import CallWriter, Function
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, free, optional, sequence, star

CONSTRAIN = "<|constrain|>"


def supports(output_format: OutputFormat, alphabet: Alphabet) -> bool:
    """Whether the headers name recipients and every marker is a token: harmony and its like."""
    channels, tools = output_format.channels, output_format.tools
    if channels is None or tools is None or not channels.recipient or len(channels.start) < 2 or channels.named:
        return False
    marks = (*channels.start, *channels.header_end, *channels.end)
    return tools.style == "tag" and tools.arguments.style == "json" and all(mark in alphabet.ids for mark in marks)


def channel_plan(
    output_format: OutputFormat,
    alphabet: Alphabet,
    wanted: Sequence[Function],
    answer: Node | None,
    *,
    required: bool,
) -> Node:
    """Any messages of reasoning and asides, and then the answer or a call; with `required` a call."""
    channels = output_format.channels
    assert channels is not None
    begins = alphabet.literal(channels.start[-1])
    opens = alphabet.literal(channels.header_end[0])
    closes = sequence(alphabet.literal(channels.end[0]), alphabet.literal(_role_header(output_format, channels)))
    headers = {route.to: route.header for route in channels.routes}
    asides = dict.fromkeys(route.header for route in channels.routes if route.header != headers.get("content"))
    asides.pop(_final(channels), None)
    before = star(sequence(begins, either(*map(constant, asides)), opens, free(), closes)) if asides else EMPTY
    final = sequence(begins, constant(_final(channels)), opens, answer or free())
    if not wanted:
        return sequence(before, final)
    # `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
    assert output_format.tools is not None
    writer = CallWriter(output_format.tools, alphabet)
    channel = next((route.header for route in reversed(channels.routes) if route.header != "final"), "commentary")
    recipient = f"{channels.recipient}{channels.namespace}"
    kind = optional(sequence(constant(" "), alphabet.literal(f"{CONSTRAIN}json")))
    body = either(*(_named(writer, function, kind, alphabet, channels) for function in wanted))
    head = sequence(alphabet.literal(channels.start[-1]), constant(f"{channel} {recipient}"))
    call = sequence(head, body, alphabet.literal(output_format.tools.call_end))
    return sequence(before, call if required else either(final, call))


def _final(channels: Channels) -> str:
    return next(route.header for route in channels.routes if route.to == "content")


def _role_header(output_format: OutputFormat, channels: Channels) -> str:
    """The part of the prompt's header that a following message repeats (`<|start|>assistant`)."""
    start = output_format.message_start
    place = start.find(channels.start[0])
    return start[place:].rstrip() if place >= 0 else f"{channels.start[0]}assistant"


def _named(writer: CallWriter, function: Function, kind: Node, alphabet: Alphabet, channels: Channels) -> Node:
    opens = alphabet.literal(channels.header_end[0])
    return sequence(constant(function.name), kind, opens, writer.arguments(function))
