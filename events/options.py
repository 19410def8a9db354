"""GenerationOptions: everything a request may specify about *how* to generate, for all wires.

Together with AG-UI's RunAgentInput (what to answer) this is the whole inbound model: adapters fill it, the agent's turn
reads it. The sampling parameters are a table of their own (events.sampling) whose ranges are checked in one place, so
that every wire refuses the same values.
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
    """The format that the answer's content must have. value: the JSON schema, pattern, choices or grammar."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]
    value: Any = None
    name: str | None = None
    strict: bool = False


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """A request to shorten its conversation. at: the prompt length in tokens from which to do so; None for the agent's
    own rule. now: at any length, and without an answer. apart: how many messages at the beginning belong only to this
    request."""

    at: int | None = None
    now: bool = False
    apart: int = 0


LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
SEPARATOR = "__"
"""Separates the label of a request's MCP server from a tool's name, in the name that the model sees."""
SEARCH_LABEL = "web_search"
"""The label of the MCP server that answers a request's hosted web search."""

DEFERRED = "agent_server/deferred"
"""Key in the metadata of a tool that the prompt does not declare, since the result of a tool search describes it."""


class RequestedMcp(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that a request names.

    url: "" for the server that the operator configured under the label. only: names of the tools to offer; None for
    all. read_only: offer only tools that declare themselves read-only. requires_approval, approvals: as in the settings
    of an agent's servers. headers: sent only to the URL, and never stored. at: the request's field that names the
    server. optional: if the server is not allowed, leave it out instead of refusing the request.
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

    model: the name that the client requested. n: number of answers. thinking: None for the template's default.
    template_kwargs: allow-listed extra variables for the chat template (never the template itself).
    raw_prompt: text or token ids that go to the engine unchanged, without chat template and parsing (text completion
        wires).
    strict_tools: names of tools whose schema must be enforced; if it cannot be, the request is refused.
    tool_grammars: tool name → Lark grammar of its argument `input`.
    stated: names of the sampling parameters that the request sets, even to the neutral value.
    token_details: attach token ids, texts and logprobs to the events' metadata (`tokens`).
    prompt_progress: report the progress of the prompt, if the engine can.
    continue_final_message: the last assistant message is a prefill to be continued: its text, or its reasoning if it
        has no text yet; "content" closes the reasoning of a message without text.
    generation_prompt: False renders the prompt without the beginning of an answer.
    truncate_prompt: keep this many of the prompt's last tokens; -1: as many as fit. truncation_side: "right" keeps its
        first tokens instead. truncate_history: leave out the oldest turns of a conversation that does not fit.
    compact: how to shorten the conversation, if the client wants to be informed of it.
    mcp_servers: those that the request names and the server's operator allows.
    special_tokens: show control tokens in the answer, whose text is then not parsed.
    prediction: text that the answer is expected to contain, which an engine may use to be faster.
    cache_salt: only requests with the same value share cached prompts. priority: 0, or how far the request yields to
        others of all tenants.
    most_tokens, most_context: the caller's limits for one answer, and for a prompt and its answer together; 0: none.
        Only the server sets them.
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
    prediction: str = ""
    store: bool = True
    most_tokens: int = 0
    most_context: int = 0
    user: str | None = None
    metadata: dict[str, Any] = {}

    def without_secrets(self) -> GenerationOptions:
        """Return the options without the headers of MCP servers, for storage."""
        if not self.mcp_servers:
            return self
        servers = tuple(msgspec.structs.replace(server, headers={}) for server in self.mcp_servers)
        return msgspec.structs.replace(self, mcp_servers=servers)
