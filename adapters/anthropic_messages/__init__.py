"""Anthropic's Messages."""

from adapters.anthropic_messages.anthropic_inbound import FIELDS, MessageFlags, parse, parse_count
from adapters.anthropic_messages.anthropic_outbound import MessageIdentity, MessageStream, count_body, message_body
from adapters.model_list import model_page, one_model_info

__all__ = [
    "FIELDS",
    "MessageFlags",
    "MessageIdentity",
    "MessageStream",
    "count_body",
    "message_body",
    "model_page",
    "one_model_info",
    "parse",
    "parse_count",
]
