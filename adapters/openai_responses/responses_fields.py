"""Every field a Responses request can have, and what this server does with it. See adapters.request_fields."""

from __future__ import annotations

from adapters.request_fields import (
    BOOLEAN,
    OBJECT,
    OBJECTS,
    SCHEDULING,
    STRING,
    STRINGS,
    Field,
    accepted,
    honoured,
    ignored,
    refused,
    sampling_fields,
)

FIELDS: dict[str, Field] = {
    **sampling_fields("responses"),
    "background": honoured("needs `store`; resume with `starting_after`", BOOLEAN),
    "background_options": ignored("background responses start at once"),
    "include": honoured("`reasoning.encrypted_content`, `message.output_text.logprobs`", STRINGS),
    "input": honoured(
        "text, messages, calls and their outputs, reasoning, compaction, `configuration_update`; "
        "`compaction_trigger` as the last",
        {"anyOf": [STRING, OBJECTS]},
    ),
    "instructions": honoured("for this response alone, as in the protocol", STRING),
    "metadata": honoured("returned with the response", OBJECT),
    "model": honoured("a name of `/v1/models`", STRING),
    "parallel_tool_calls": honoured("false allows one call", BOOLEAN),
    "previous_response_id": honoured("of a stored response", STRING),
    "reasoning": honoured("`effort`; `summary` shows reasoning as a summary", OBJECT),
    "safety_identifier": honoured("as `user`, where that is absent", STRING),
    "store": honoured("true if absent", BOOLEAN),
    "stream": honoured("", BOOLEAN),
    "stream_options": honoured("`include_obfuscation: true` changes nothing", OBJECT),
    "text": honoured("`format`: text, json_object, json_schema", OBJECT),
    "tool_choice": honoured(
        "auto, none, required, a function, a custom tool, allowed_tools", {"type": ["string", "object"]}
    ),
    "tools": honoured(
        "functions, custom tools, namespaces, the client's `tool_search`, `local_shell`, `shell` and `apply_patch`; "
        "tools that OpenAI's service runs are left out with a warning",
        OBJECTS,
    ),
    "top_logprobs": honoured("with `include`", {"type": "integer", "minimum": 0, "maximum": 20}),
    "user": honoured("kept with the run", STRING),
    "client_metadata": accepted("read by nothing here", OBJECT),
    "prompt_cache_key": accepted("prefixes are cached by their content, whatever the key"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by their content, whatever the breakpoints"),
    "service_tier": ignored("there is one tier", neutral=("auto", "default"), schema=STRING),
    "truncation": honoured('"auto" leaves out the oldest turns of a conversation that does not fit', STRING),
    "context_management": honoured("`compaction` with `compact_threshold`, in tokens of the prompt", OBJECTS),
    "access_programs": ignored("there are no such programs"),
    "conversation": honoured(
        "its items come before the input, and the answer is added to it; needs `store`", {"type": ["string", "object"]}
    ),
    "image": ignored("there is no image compression"),
    "max_tool_calls": ignored("it bounds built-in tools, of which there are none"),
    "moderation": refused("nothing is moderated"),
    "prompt": refused("there are no stored prompts"),
    # this server's own, as on Chat Completions
    "chat_template_kwargs": honoured("variables for the chat template; never the template itself", OBJECT),
    "enable_thinking": honoured("", BOOLEAN),
    **SCHEDULING,
}
