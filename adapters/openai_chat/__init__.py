"""OpenAI's Chat Completions."""

from adapters.openai_chat.chat_inbound import FIELDS, ChatFlags, parse, read_conversation
from adapters.openai_chat.chat_outbound import ChatIdentity, ChatStream, chat_body

__all__ = ["FIELDS", "ChatFlags", "ChatIdentity", "ChatStream", "chat_body", "parse", "read_conversation"]
