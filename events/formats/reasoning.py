"""How models delimit reasoning, by the names under which servers know it."""

from __future__ import annotations

from events.formats.output_format import Reasoning


def think(*ended_by: str, start: str = "<think>", end: str = "</think>", opens: bool = False) -> Reasoning:
    """`<think>`…`</think>`. opens: the output starts inside unless the prompt says otherwise."""
    return Reasoning(start=(start,), end=(end,), ended_by=ended_by, initial="reasoning" if opens else "content")


_TOOL_CALL = think("<tool_call>")

REASONING: dict[str, Reasoning] = {
    "apertus2509": Reasoning(
        start=("<|inner_prefix|>",),
        end=("<|inner_suffix|>",),
        ended_by=("<|tools_prefix|>[",),
        after_call="reasoning",
    ),
    "cohere_command4": think(start="<|START_THINKING|>", end="<|END_THINKING|>"),
    "deepseek": Reasoning(start=("<think>",), end=("</think>",), initial="undecided"),
    "deepseek-r1": think(opens=True),
    "deepseek-v3": _TOOL_CALL,
    "deepseek-v4": think(),
    "ernie45": think("<tool_call>"),
    "gemma4": Reasoning(
        start=("<|channel>thought\n", "<|channel>thought", "<|channel>"),
        end=("<channel|>",),
        ended_by=("<|tool_call>",),
    ),
    "gigachat35": think(opens=True),
    "glm45": _TOOL_CALL,
    "gpt-oss": Reasoning(start=("<|channel|>analysis<|message|>",), end=("<|end|>",)),
    "granite": Reasoning(
        start=("Here is my thought process:", "Here's my thought process:"),
        end=("Here is my response:", "Here's my response:"),
    ),
    "hunyuan": think("<tool_calls>"),
    "inkling": Reasoning(start=("<|content_thinking|>",), end=("<|end_message|>",)),
    "k2_horizon": Reasoning(
        start=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        end=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        ended_by=("<ifm|tool_call",),
        initial="reasoning",
    ),
    "kimi_k2": think("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    "kimi_k3": Reasoning(
        start=("<|open|>think<|sep|>",),
        end=("<|close|>think<|sep|>", "<|close|>think"),
        ended_by=("<|open|>tools<|sep|>",),
        initial="content",
    ),
    "minimax-append-think": think(),
    "minimax-m3": think(start="<mm:think>", end="</mm:think>"),
    "mistral": think(start="[THINK]", end="[/THINK]"),
    "muse": Reasoning(start=("to=self<|message|>",), end=("<|eom|>",)),
    "ling3": _TOOL_CALL,
    "nemotron_3": Reasoning(start=("<think>",), end=("</think>",), ended_by=("<tool_call>",), unclosed="content"),
    "plamo3": think(
        "<|plamo:begin_tool_requests:plamo|>", start="<|plamo:begin_think:plamo|>", end="<|plamo:end_think:plamo|>"
    ),
    "qwen3": _TOOL_CALL,
    "seed_oss": think("<seed:tool_call>", start="<seed:think>", end="</seed:think>"),
    "step3": think(opens=True),
    "think": think(),
}
"""One entry for each way; `registry.REASONING_ALIASES` has the other names."""
