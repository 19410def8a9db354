"""OpenAI's Responses."""

from adapters.openai_responses.items import referenced, response_of
from adapters.openai_responses.responses_fields import FIELDS
from adapters.openai_responses.responses_inbound import Continuation, ResponseFlags, parse, with_history
from adapters.openai_responses.responses_outbound import ResponseIdentity, ResponseStream, response_object
from adapters.openai_responses.stored import ResponseRecord, deleted_body, item_list, read_query

__all__ = [
    "FIELDS",
    "Continuation",
    "ResponseFlags",
    "ResponseIdentity",
    "ResponseRecord",
    "ResponseStream",
    "deleted_body",
    "item_list",
    "parse",
    "read_query",
    "referenced",
    "response_object",
    "response_of",
    "with_history",
]
