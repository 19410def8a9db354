"""MCP servers that a request names: the parts that OpenAI's and Anthropic's wires share."""

from __future__ import annotations

from typing import Literal

from adapters.body import Lenient, convert, notes_of_request, wrong
from events.options import LABEL, SEARCH_LABEL, SEPARATOR, RequestedMcp


class ToolFilter(Lenient, frozen=True):
    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalFilter(Lenient, frozen=True):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class OpenAIMcp(Lenient, frozen=True):
    """The `mcp` tool of Responses. Without `require_approval`, every call needs a person's approval."""

    type: str
    server_label: str
    server_url: str | None = None
    server_description: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None


def openai_server(value: object, at: str) -> RequestedMcp | None:
    """Read an `mcp` tool; None for OpenAI's own connectors and tunnels, which are omitted with a warning. Raises
    RequestError."""
    tool: OpenAIMcp = convert(value, OpenAIMcp, at)
    if tool.connector_id is not None or tool.tunnel_id is not None:
        notes_of_request().warn(f"{at} is left out: connectors and tunnels are OpenAI's; give a server_url.")
        return None
    allowed = tool.allowed_tools
    tool_filter = allowed if isinstance(allowed, ToolFilter) else ToolFilter(tool_names=allowed)
    approvals: dict[str, bool] = {}
    asks: bool | Literal["writes"] = tool.require_approval != "never"
    if isinstance(rule := tool.require_approval, ApprovalFilter):
        approvals = dict.fromkeys((rule.never and rule.never.tool_names) or (), False)
        approvals |= dict.fromkeys((rule.always and rule.always.tool_names) or (), True)
        asks = "writes" if rule.never is not None and rule.never.read_only else True
    headers = {name.lower(): text for name, text in (tool.headers or {}).items()}
    if tool.authorization is not None:
        headers["authorization"] = f"Bearer {tool.authorization}"
    return RequestedMcp(
        label=_label(tool.server_label, f"{at}.server_label"),
        url=tool.server_url or "",
        only=None if tool_filter.tool_names is None else tuple(tool_filter.tool_names),
        read_only=bool(tool_filter.read_only),
        requires_approval=asks,
        approvals=approvals,
        headers=_checked_headers(headers, at),
        at=at,
    )


def search_server(at: str) -> RequestedMcp:
    """Return the operator's MCP server for `web_search`; it is omitted with a warning if none is configured."""
    return RequestedMcp(label=SEARCH_LABEL, at=at, optional=True)


class ToolConfiguration(Lenient, frozen=True):
    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class AnthropicMcp(Lenient, frozen=True):
    name: str
    url: str
    type: Literal["url"] = "url"
    authorization_token: str | None = None
    tool_configuration: ToolConfiguration | None = None


class Enabled(Lenient, frozen=True):
    enabled: bool | None = None
    defer_loading: bool | None = None


class Toolset(Lenient, frozen=True):
    type: str
    mcp_server_name: str
    default_config: Enabled = Enabled()
    configs: dict[str, Enabled] | None = None
    cache_control: object = None
    tools: object = None


def anthropic_servers(value: object, tools: object) -> tuple[RequestedMcp, ...]:
    """Read `mcp_servers` and the `mcp_toolset` entries of `tools`. Raises RequestError.

    A server without a toolset, as in the protocol's first version, offers all of its tools.
    """
    servers: list[AnthropicMcp] = convert(value or [], list[AnthropicMcp], "mcp_servers")
    toolsets: dict[str, Toolset] = {}
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "mcp_toolset":
            toolset_entry: Toolset = convert(tool, Toolset, f"tools.{index}")
            if toolset_entry.mcp_server_name not in {server.name for server in servers}:
                notes_of_request().warn(
                    f"tools.{index} is left out: mcp_servers has no {toolset_entry.mcp_server_name!r}."
                )
            toolsets[toolset_entry.mcp_server_name] = toolset_entry
    requested: list[RequestedMcp] = []
    for index, server in enumerate(servers):
        at = f"mcp_servers.{index}"
        legacy_filter = server.tool_configuration or ToolConfiguration()
        toolset = toolsets.get(server.name)
        only, without = legacy_filter.allowed_tools, frozenset[str]()
        if toolset is not None:
            configs = toolset.configs or {}
            without = frozenset(name for name, config in configs.items() if config.enabled is False)
            if toolset.default_config.enabled is False:
                only = [name for name, config in configs.items() if config.enabled is True]
        if legacy_filter.enabled is False:
            continue
        token = server.authorization_token
        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        requested.append(
            RequestedMcp(
                label=_label(server.name, f"{at}.name"),
                url=server.url,
                only=None if only is None else tuple(only),
                without=without,
                requires_approval=False,
                headers=_checked_headers(headers, at),
                at=at,
            )
        )
    if len({server.label for server in requested}) < len(requested):
        raise wrong("mcp_servers", "must have unique names")
    return tuple(requested)


def _label(value: str, at: str) -> str:
    if LABEL.fullmatch(value) is None or SEPARATOR in value:
        raise wrong(at, "must be 1 to 64 letters, digits, - and single _")
    return value


_NEVER = ("host", "content-length", "content-type", "transfer-encoding", "connection", "cookie")


def _checked_headers(headers: dict[str, str], at: str) -> dict[str, str]:
    for name, text in headers.items():
        if name in _NEVER or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise wrong(f"{at}.headers", f"may not have {name!r}")
        if not (text.isascii() and text.isprintable()):
            raise wrong(f"{at}.headers", "must have values of printable ASCII")
    return headers


def split_tool_name(name: str, labels: tuple[str, ...]) -> tuple[str, str] | None:
    """Split the name that the model sees into server label and tool; None if the request names no such server."""
    label, separator, tool = name.partition(SEPARATOR)
    return (label, tool) if separator and label in labels else None
