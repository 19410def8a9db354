"""OpenAI's Responses."""

from adapters.openai_responses.input_items import TRIGGER, referenced, response_of
from adapters.openai_responses.responses_inbound import FIELDS, Continuation, ResponseFlags, parse, with_history
from adapters.openai_responses.responses_outbound import (
    CreateResponse,
    ResponseIdentity,
    ResponsesSession,
    ResponseStream,
    response_object,
)
from adapters.openai_responses.stored import (
    COMPACT_FIELDS,
    RESPONSE_PREFIX,
    ResponseRecord,
    compacted_body,
    deleted_body,
    item_list,
    parse_compact,
    read_query,
    summary_run,
)

__all__ = [
    "COMPACT_FIELDS",
    "FIELDS",
    "RESPONSE_PREFIX",
    "TRIGGER",
    "Continuation",
    "CreateResponse",
    "ResponseFlags",
    "ResponseIdentity",
    "ResponseRecord",
    "ResponseStream",
    "ResponsesSession",
    "compacted_body",
    "deleted_body",
    "item_list",
    "parse",
    "parse_compact",
    "read_query",
    "referenced",
    "response_object",
    "response_of",
    "summary_run",
    "with_history",
]
