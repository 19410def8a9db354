"""OpenAI's Chat Completions."""

from adapters.openai_chat.fields import FIELDS
from adapters.openai_chat.inbound import ChatFlags, parse
from adapters.openai_chat.outbound import ChatIdentity, ChatStream, chat_body

__all__ = ["FIELDS", "ChatFlags", "ChatIdentity", "ChatStream", "chat_body", "parse"]
