"""Every field a Chat Completions request can have, and what this server does with it.

honoured: it changes the answer as described. accepted: it asks for what happens anyway, or for nothing that could be
seen. refused: a 400 that names it, unless its value is one of `neutral` (null always is). The documentation's table
is generated from here, and a test compares it with the request type of the `openai` package.
"""

from __future__ import annotations

from adapters.request_fields import Field, accepted, honoured, refused

FIELDS: dict[str, Field] = {
    # the protocol's own
    "messages": honoured("text and, where the model reads it, images, audio, video and files"),
    "model": honoured("a name of `/v1/models`"),
    "frequency_penalty": honoured(),
    "logit_bias": honoured(),
    "logprobs": honoured(),
    "max_completion_tokens": honoured("wins over `max_tokens`"),
    "max_tokens": honoured(),
    "metadata": honoured("kept with the run"),
    "n": honoured(),
    "parallel_tool_calls": honoured(),
    "presence_penalty": honoured(),
    "reasoning_effort": honoured('"none" switches thinking off'),
    "response_format": honoured("text, json_object, json_schema"),
    "seed": honoured(),
    "stop": honoured(),
    "store": honoured("true keeps the exchange as a thread"),
    "stream": honoured(),
    "stream_options": honoured("`include_usage`; `include_obfuscation: true` is refused"),
    "temperature": honoured(),
    "tool_choice": honoured("auto, none, required, a function, allowed_tools"),
    "tools": honoured("functions; custom tools are refused"),
    "top_logprobs": honoured(),
    "top_p": honoured(),
    "user": honoured("kept with the run"),
    "safety_identifier": honoured("as `user`, where that is absent"),
    "prompt_cache_key": accepted("prefixes are cached by their content, whatever the key"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by their content, whatever the breakpoints"),
    "service_tier": refused("there is one tier", neutral=("auto", "default")),
    "modalities": refused("answers are text", neutral=(["text"],)),
    "verbosity": refused("models have no such switch", neutral=("medium",)),
    "audio": refused("answers are text"),
    "function_call": refused("use `tool_choice`"),
    "functions": refused("use `tools`"),
    "moderation": refused("nothing is moderated"),
    "prediction": refused("there is no speculative decoding from a given text"),
    "web_search_options": refused("nothing is searched"),
    # what other open servers accept
    "top_k": honoured(),
    "min_p": honoured(),
    "typical_p": honoured(),
    "repetition_penalty": honoured(),
    "min_tokens": honoured(),
    "stop_token_ids": honoured(),
    "ignore_eos": honoured(),
    "structured_outputs": honoured("json, json_object, regex, choice, grammar, structural_tag"),
    "chat_template_kwargs": honoured("variables for the chat template; never the template itself"),
    "continue_final_message": honoured("the last assistant message is a prefill"),
    "add_generation_prompt": refused("it follows from `continue_final_message`", neutral=(True,)),
    "return_token_ids": honoured("`token_ids` on each choice, `prompt_token_ids` where known"),
    "enable_thinking": honoured(),
    "thinking": honoured('true or false, or an object whose `type` is "enabled" or "disabled"'),
    "reasoning": honoured("`effort`, `enabled`, `exclude`"),
    "include_reasoning": honoured("false leaves reasoning out of the answer"),
    "echo": refused("use `continue_final_message`", neutral=(False,)),
    "skip_special_tokens": refused("control tokens are never shown", neutral=(True,)),
    "include_stop_str_in_output": refused("stop strings are never sent", neutral=(False,)),
    "prompt_logprobs": refused("use `/v1/completions` with `echo`"),
    # this server's own
    "delivery": honoured('"immediate" or "adaptive" pieces'),
    "boundaries": honoured('"strict" makes a broken tool call an error'),
    "constrain_tools": honoured("false lets tool calls be generated without a grammar"),
}
