"""Every field a Messages request can have, and what this server does with it. See adapters.request_fields."""

from __future__ import annotations

from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    SCHEDULING,
    STRING,
    Field,
    accepted,
    honoured,
    ignored,
    refused,
    sampling_fields,
)

_SAMPLING = sampling_fields("messages")
FIELDS: dict[str, Field] = {
    **_SAMPLING,
    "max_tokens": honoured("required; more than the context holds means what it leaves", INTEGER),
    "messages": honoured("an assistant message at the end is a prefill", OBJECTS),
    "model": honoured("a name of `/v1/models`", STRING),
    "metadata": honoured("`user_id` is kept with the run", OBJECT),
    "output_config": honoured("`effort`; `format` json_schema", OBJECT),
    "stream": honoured("", BOOLEAN),
    "system": honoured("text, or text blocks", {"anyOf": [STRING, OBJECTS]}),
    "thinking": honoured("off if absent; `budget_tokens` bounds it where the engine can", OBJECT),
    "tool_choice": honoured("auto, any, tool, none; `disable_parallel_tool_use`", OBJECT),
    "tools": honoured(
        "the client's own, deferred ones too, `bash`, `text_editor`, `memory`; what Anthropic's service runs is left "
        "out with a warning",
        OBJECTS,
    ),
    "cache_control": accepted("prefixes are cached by their content, whatever the marks"),
    "context_management": accepted("the history is used as it is sent"),
    "service_tier": ignored("there is one tier", neutral=("auto", "standard_only")),
    "speed": ignored("there is one speed", neutral=("standard",)),
    "container": ignored("there are no containers"),
    "diagnostics": ignored("nothing is compared with earlier requests"),
    "inference_geo": refused("there is one place"),
    "mcp_servers": refused("the server's operator connects MCP servers, not the request"),
    "thread": refused("conversations are sent whole", code="thread_unsupported_request"),
    "user_profile_id": ignored("there are no profiles"),
    "workspace_id": ignored("the key says who asks"),
    **SCHEDULING,
}
COUNTED = frozenset(FIELDS) - frozenset(_SAMPLING) - {"stream", "metadata", *SCHEDULING}
"""What count_tokens takes."""
