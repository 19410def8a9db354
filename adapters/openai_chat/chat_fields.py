"""Every field a Chat Completions request can have, and what this server does with it.

honoured: it changes the answer as described. accepted: it asks for what happens anyway, or for nothing that could be
seen. refused: a 400 that names it, unless its value is one of `neutral` (null always is). The documentation's table
is generated from here, and a test compares it with the request type of the `openai` package.
"""

from __future__ import annotations

from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    OTHER_SERVERS,
    STRING,
    STRINGS,
    Field,
    accepted,
    honoured,
    ignored,
    one_of,
    refused,
    sampling_fields,
)
from adapters.request_options import EFFORTS

FIELDS: dict[str, Field] = {
    **sampling_fields("chat"),
    # the protocol's own
    "messages": honoured("text and, where the model reads it, images, audio, video and files", OBJECTS),
    "model": honoured("a name of `/v1/models`", STRING),
    "logprobs": honoured("reports each token's log probability", BOOLEAN),
    "max_completion_tokens": honoured("wins over `max_tokens`", INTEGER),
    "metadata": honoured("kept with the run", OBJECT),
    "n": honoured("answers to the same messages", INTEGER),
    "parallel_tool_calls": honoured("false allows one call", BOOLEAN),
    "reasoning_effort": honoured('"none" switches thinking off', one_of(*EFFORTS)),
    "response_format": honoured("text, json_object (a `schema` beside it counts), json_schema, structural_tag", OBJECT),
    "store": honoured("true keeps the exchange as a thread", BOOLEAN),
    "stream": honoured("", BOOLEAN),
    "stream_options": honoured(
        "`include_usage`, `continuous_usage_stats`; `include_obfuscation: true` changes nothing", OBJECT
    ),
    "tool_choice": honoured(
        "auto, none, required, a function, a custom tool, allowed_tools", {"type": ["string", "object"]}
    ),
    "tools": honoured("functions, and custom tools with text, a Lark grammar or a regular expression", OBJECTS),
    "user": honoured("kept with the run", STRING),
    "safety_identifier": honoured("as `user`, where that is absent", STRING),
    "prompt_cache_key": accepted("prefixes are cached by their content, whatever the key"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by their content, whatever the breakpoints"),
    "service_tier": ignored("there is one tier", neutral=("auto", "default"), schema=STRING),
    "modalities": refused("answers are text", neutral=(["text"],), schema=STRINGS),
    "verbosity": ignored("models have no such switch", neutral=("medium",), schema=STRING),
    "audio": refused("answers are text"),
    "function_call": honoured("`tool_choice` as it was before; with `functions`", {"type": ["string", "object"]}),
    "functions": honoured("`tools` as they were before; answered by `function_call`", OBJECTS),
    "moderation": refused("nothing is moderated"),
    "prediction": ignored("there is no speculative decoding from a given text"),
    "web_search_options": ignored("nothing is searched"),
    # what other open servers accept
    "structured_outputs": honoured("json, json_object, regex, choice, grammar, structural_tag", OBJECT),
    "chat_template_kwargs": honoured("variables for the chat template; never the template itself", OBJECT),
    "continue_final_message": honoured("the last assistant message is a prefill", BOOLEAN),
    "add_generation_prompt": honoured("false ends the prompt with the last message", BOOLEAN),
    "return_token_ids": honoured("`token_ids` on each choice, `prompt_token_ids` where known", BOOLEAN),
    "enable_thinking": honoured("", BOOLEAN),
    "thinking": honoured('true or false, or an object whose `type` is "enabled" or "disabled"'),
    "reasoning": honoured("`effort`, `enabled`, `exclude`", OBJECT),
    "include_reasoning": honoured("false leaves reasoning out of the answer", BOOLEAN),
    "echo": refused("use `continue_final_message`", neutral=(False,)),
    "include_stop_str_in_output": honoured("the stop string that matched ends the answer's text", BOOLEAN),
    **OTHER_SERVERS,
    # this server's own
    "delivery": honoured('"immediate" or "adaptive" pieces', one_of("immediate", "adaptive")),
    "boundaries": honoured('"strict" makes a broken tool call an error', one_of("lenient", "strict")),
    "constrain_tools": honoured("false lets tool calls be generated without a grammar", BOOLEAN),
}
