"""OpenAI's Chat Completions."""

from adapters.openai_chat.chat_body import chat_body
from adapters.openai_chat.chat_fields import FIELDS
from adapters.openai_chat.chat_inbound import ChatFlags, parse, read_conversation
from adapters.openai_chat.chat_outbound import ChatIdentity, ChatStream

__all__ = ["FIELDS", "ChatFlags", "ChatIdentity", "ChatStream", "chat_body", "parse", "read_conversation"]
