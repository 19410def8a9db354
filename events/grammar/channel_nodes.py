"""Nodes for outputs that consist of messages with headers (harmony).

A message is `start` CHANNEL `header_end` BODY. A message other than a call ends with the first of `end`; the next
message then begins with the same header as the prompt's last message. A call names its recipient in the header, and its
end marker ends the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from events.formats.output_format import OutputFormat
from events.grammar.call_nodes import CallWriter, Function
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, free, optional, sequence, star

CONSTRAIN = "<|constrain|>"


def supports(output_format: OutputFormat, alphabet: Alphabet) -> bool:
    """Return whether the headers name recipients and every marker is a single token, as in harmony."""
    channels, tools = output_format.channels, output_format.tools
    if channels is None or tools is None or not channels.recipient or len(channels.start) < 2 or channels.named:
        return False
    marks = (*channels.start, *channels.header_end, *channels.end)
    return tools.style == "tag" and tools.arguments.style == "json" and all(mark in alphabet.ids for mark in marks)


def channel_nodes(
    output_format: OutputFormat,
    alphabet: Alphabet,
    functions: Sequence[Function],
    answer: Node | None,
    *,
    required: bool,
) -> Node:
    """Return the node of any number of reasoning and commentary messages, then the answer or a call.

    answer: the form of the answer, else any text. required: a call must follow, not an answer.
    """
    channels = output_format.channels
    assert channels is not None
    begins = alphabet.literal(channels.start[-1])
    opens = alphabet.literal(channels.header_end[0])
    # The part of the prompt's header that a following message repeats (`<|start|>assistant`).
    start = output_format.message_start
    place = start.find(channels.start[0])
    role_header = start[place:].rstrip() if place >= 0 else f"{channels.start[0]}assistant"
    closes = sequence(alphabet.literal(channels.end[0]), alphabet.literal(role_header))
    answer_header = next(route.header for route in channels.routes if route.to == "content")
    headers = {route.to: route.header for route in channels.routes}
    asides = dict.fromkeys(route.header for route in channels.routes if route.header != headers.get("content"))
    asides.pop(answer_header, None)
    before = star(sequence(begins, either(*map(constant, asides)), opens, free(), closes)) if asides else EMPTY
    final = sequence(begins, constant(answer_header), opens, answer or free())
    if not functions:
        return sequence(before, final)
    # `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
    assert output_format.tools is not None
    writer = CallWriter(output_format.tools, alphabet)
    channel = next((route.header for route in reversed(channels.routes) if route.header != "final"), "commentary")
    recipient = f"{channels.recipient}{channels.namespace}"
    kind = optional(sequence(constant(" "), alphabet.literal(f"{CONSTRAIN}json")))
    bodies = [sequence(constant(each.name), kind, opens, writer.arguments(each)) for each in functions]
    head = sequence(alphabet.literal(channels.start[-1]), constant(f"{channel} {recipient}"))
    call = sequence(head, either(*bodies), alphabet.literal(output_format.tools.call_end))
    return sequence(before, call if required else either(final, call))
