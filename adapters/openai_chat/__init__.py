"""OpenAI's Chat Completions."""

from adapters.openai_chat.chat_inbound import (
    FIELDS,
    ChatFlags,
    parse,
    read_conversation,
    read_part,
    read_stream_options,
)
from adapters.openai_chat.chat_outbound import (
    ANSWER_FAILURES,
    DONE,
    ChatIdentity,
    ChatStream,
    chat_body,
    error_object,
    stop_text,
    wire_finish,
)

__all__ = [
    "ANSWER_FAILURES",
    "DONE",
    "FIELDS",
    "ChatFlags",
    "ChatIdentity",
    "ChatStream",
    "chat_body",
    "error_object",
    "parse",
    "read_conversation",
    "read_part",
    "read_stream_options",
    "stop_text",
    "wire_finish",
]
