"""Tool prompts from model cards, for families whose chat templates do not support tools.

The family is recognised by what its chat template renders, as with a `Sign`. Without a card, tools are explained in
general words (`events.template.declarations.explain_tools`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from events.formats.family import Evidence
from events.formats.output_format import Tools
from events.formats.shapes import LIST, PARAMETERS


class ToolCard(msgspec.Struct, frozen=True, kw_only=True):
    """A family's tool prompt.

    words: the text of the system message; {tools} is replaced by the declarations, a JSON list of functions. tools:
    how the model writes calls after this prompt. result: the text of a user message with a result; "" if the template's
    own role for results is right, or no form is known. test: returns whether a template belongs to the family. source:
    the documentation of the prompt.
    """

    name: str
    words: str
    tools: Tools
    result: str = ""
    test: Callable[[Evidence], bool]
    source: str


GEMMA = ToolCard(
    name="gemma",
    words="""\
You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of
{"name": function name, "parameters": dictionary of argument name and its value}

You SHOULD NOT include any other text in the response if you call a function
{tools}""",
    tools=Tools(call_separator="\n", json=PARAMETERS),
    test=lambda evidence: evidence.derived.message_start.startswith("<start_of_turn>"),
    source="https://ai.google.dev/gemma/docs/capabilities/function-calling",
)
LLAMA = ToolCard(
    name="llama",
    words="""\
Given the following functions, please respond with a JSON for a function call with its proper arguments that best \
answers the given prompt.

Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. Do not use \
variables.

{tools}""",
    tools=Tools(call_separator="; ", json=PARAMETERS),
    test=lambda evidence: evidence.derived.message_start.startswith("<|start_header_id|>"),
    source="https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/",
)
SMOLLM2 = ToolCard(
    name="smollm2",
    words="""\
You are an expert in composing functions. You are given a question and a set of possible functions. Based on the \
question, you will need to make one or more function/tool calls to achieve the purpose. If none of the functions can \
be used, point it out and refuse to answer. If the given question lacks the parameters required by the function, also \
point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, \
answer in words.
<tool_call>[
{"name": "func_name1", "arguments": {"argument1": "value1", "argument2": "value2"}},
... (more tool calls as required)
]</tool_call>""",
    tools=Tools(section_start="<tool_call>[\n", section_end="\n]</tool_call>", call_separator=",\n", json=LIST),
    result="<tool_response>\n{text}\n</tool_response>",
    test=lambda evidence: (
        "named SmolLM, trained by Hugging Face" in evidence.system + evidence.source
        and "xml_tools" not in evidence.source
    ),  # SmolLM3 has a place for tools, under that name
    source="https://huggingface.co/HuggingFaceTB/SmolLM2-1.7B-Instruct",
)
CARDS = {card.name: card for card in (GEMMA, LLAMA, SMOLLM2)}
