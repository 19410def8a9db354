"""Anthropic's Messages."""

from adapters.anthropic_messages.content_blocks import digest
from adapters.anthropic_messages.messages_inbound import FIELDS, MessageFlags, parse, parse_count
from adapters.anthropic_messages.messages_outbound import (
    MessageIdentity,
    MessageStream,
    count_body,
    input_object,
    message_body,
)

__all__ = [
    "FIELDS",
    "MessageFlags",
    "MessageIdentity",
    "MessageStream",
    "count_body",
    "digest",
    "input_object",
    "message_body",
    "parse",
    "parse_count",
]
