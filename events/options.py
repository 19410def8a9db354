"""GenerationOptions: everything a request may say about *how* to generate, on whatever wire it came.

Together with AG-UI's own RunAgentInput (what to answer) this is the whole inbound model; adapters fill it, the agent
turn reads it. Names are the field's own; the sampling parameters are a table of their own (events.sampling), whose
ranges are checked once, so that every wire refuses the same values.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from events.sampling import OptionError, SamplingParams

__all__ = ["Compact", "GenerationOptions", "OptionError", "ResponseFormat", "SamplingParams", "ToolChoice"]


class ToolChoice(msgspec.Struct, frozen=True):
    """Which tools may or must be called. `names` restricts the choice ("named": exactly one; "auto" or "required"
    with names: OpenAI's allowed_tools)."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A shape that the answer's content must have. `value` is the JSON schema, pattern, choices or grammar."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]
    value: Any = None
    name: str | None = None
    strict: bool = False


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """A request that its conversation be made short. at: tokens of a prompt from which on; None for the agent's own
    rule. now: whatever its length, and without an answer. apart: messages at its head that are this request's alone."""

    at: int | None = None
    now: bool = False
    apart: int = 0


LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
SEPARATOR = "__"
"""Between the label of an MCP server that a request names and a tool's name, in the one name that a model sees."""
SEARCH_LABEL = "web_search"
"""The label of the MCP server that answers a request's hosted web search."""


class RequestedMcp(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that a request names.

    url: "" for the one that the operator has under the label. only: names of the tools to offer; None for all.
    read_only: offer those alone that declare it. requires_approval, approvals: as in the settings of an agent's
    servers. headers: sent to the URL alone, and never kept. at: the request's field. optional: left out where it is not
    allowed.
    """

    label: str
    url: str = ""
    only: tuple[str, ...] | None = None
    without: frozenset[str] = frozenset()
    read_only: bool = False
    requires_approval: bool | Literal["writes"] = False
    approvals: dict[str, bool] = {}
    headers: dict[str, str] = {}
    at: str = ""
    optional: bool = False

    def __repr__(self) -> str:
        return f"RequestedMcp(label={self.label!r}, url={self.url!r})"


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request's options.

    model: the name the client asked for. n: number of answers. thinking: None leaves the template's default.
    template_kwargs: allow-listed extra variables for the chat template (never the template itself).
    raw_prompt: text or token ids that go to the engine as they are, with no chat template and no parsing (text
    completion wires). strict_tools: names of tools whose schema must be enforced or refused.
    tool_grammars: names of tools whose argument `input` is text of a Lark grammar, with the grammar.
    stated: names of the sampling parameters that the request states, also where they say the neutral value.
    token_details: attach token ids, texts and logprobs to the events' metadata (`tokens`).
    prompt_progress: tell how far the prompt is, where the engine can.
    continue_final_message: the last assistant message is a prefill to be continued: its text, or its reasoning where
        it has no text yet; "content" closes the reasoning of a message without text.
    generation_prompt: False renders the prompt without the beginning of an answer.
    truncate_prompt: keep this many of the prompt's last tokens; -1: as many as fit. truncation_side: "right" keeps its
        first tokens instead. truncate_history: leave out the oldest turns of a conversation that does not fit.
    fit_answer: `max_tokens` means at most what the context leaves; else a prompt that leaves less is refused.
    compact: how the conversation is made short, where the client wants that told.
    mcp_servers: that the request names, and the server's operator allows.
    special_tokens: show control tokens in the answer, whose text is then not parsed.
    cache_salt: what is cached is found by requests with the same one alone. priority: 0, or how far the request gives
        way to others of all tenants.
    most_tokens, most_context: what the caller may have, of one answer, and of a prompt and its answer together; 0: any.
        The server sets them, and no request does.
    """

    model: str | None = None
    sampling: SamplingParams = SamplingParams()
    stated: frozenset[str] = frozenset()
    n: int = 1
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    strict_tools: frozenset[str] = frozenset()
    tool_grammars: dict[str, str] = {}
    response_format: ResponseFormat | None = None
    thinking: bool | None = None
    reasoning_effort: str | None = None
    template_kwargs: dict[str, object] = {}
    raw_prompt: str | tuple[int, ...] | None = None
    continue_final_message: bool | Literal["content"] = False
    generation_prompt: bool = True
    truncate_prompt: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    truncate_history: bool = False
    fit_answer: bool = False
    compact: Compact | None = None
    mcp_servers: tuple[RequestedMcp, ...] = ()
    special_tokens: bool = False
    cache_salt: str = ""
    priority: int = 0
    delivery: Literal["immediate", "adaptive"] | None = None
    boundaries: Literal["lenient", "strict"] | None = None
    token_details: bool = False
    prompt_progress: bool = False
    constrain_tools: bool | None = None
    store: bool = True
    most_tokens: int = 0
    most_context: int = 0
    user: str | None = None
    metadata: dict[str, Any] = {}

    def without_secrets(self) -> GenerationOptions:
        """What may be kept."""
        if not self.mcp_servers:
            return self
        servers = tuple(msgspec.structs.replace(server, headers={}) for server in self.mcp_servers)
        return msgspec.structs.replace(self, mcp_servers=servers)
