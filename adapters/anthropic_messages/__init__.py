"""Anthropic's Messages."""

from adapters.anthropic_messages.anthropic_fields import FIELDS
from adapters.anthropic_messages.anthropic_inbound import MessageFlags, parse, parse_count
from adapters.anthropic_messages.anthropic_outbound import MessageIdentity, MessageStream, count_body, message_body
from adapters.anthropic_messages.models import model_page, one_model

__all__ = [
    "FIELDS",
    "MessageFlags",
    "MessageIdentity",
    "MessageStream",
    "count_body",
    "message_body",
    "model_page",
    "one_model",
    "parse",
    "parse_count",
]
