"""An agent: instructions, tools and rules for one model, and the agents it can delegate to. Plain data.

`served.py` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from agent_server.agents.a2ui_settings import A2ui
from agent_server.agents.compaction_settings import Compaction, CompactionMode
from agent_server.agents.guardrails import Guard, Guards, Hook, as_guard
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.reasoning_policy import ReasoningMode
from agent_server.agents.sealing import Sealer
from agent_server.agents.server_tools import Tool, tool
from agent_server.agents.state import PredictState
from agent_server.agents.turn import LanguageModel
from agent_server.runs.store import Store
from agent_server.settings import ToolLimits
from agent_server.user import NOTHING, Forward
from events.options import SamplingParams

if TYPE_CHECKING:
    from agent_server.agents.mcp.app_requests import AppRequests
    from agent_server.agents.mcp.mcp_tools import McpConnections, McpTools

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
Instructions = str | Callable[[dict[str, object]], str]


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent that a server can serve: instructions, tools and rules for one model.

    Attributes:
        name: How clients address it: letters, digits, '.', '_' and '-'. Wires without agents get "default".
        model: The name of one of several served models; "" for the first.
        instructions: The system message, or a function of the shared state that returns it.
        description: The agent's purpose, shown in lists of agents.
        tools: Tools made with `@tool`, plain functions, or other agents (subagents).
        mcp_servers: MCP servers whose tools the agent may call as well.
        state: The initial shared state: a pydantic model with defaults, or an object. None shares no state.
        state_in_prompt: Whether the prompt includes the state.
        predict_state: Tool arguments that clients see as parts of the state while the model writes them.
        max_steps: Maximum number of model turns in one run.
        sampling: Default sampling parameters, for those that a request does not set.
        thinking: Whether the model reasons, if the request does not say.
        reasoning: How much reasoning clients see: "full", "summary" or "hidden".
        summarise: Summarises reasoning; None for the model itself.
        a2ui: Settings for A2UI surfaces. True for the defaults; None offers surfaces to pages that send a catalog,
            False to no page.
        time_limit: Time limit of a call in seconds, for tools without their own; None takes the server's.
        result_limit: Maximum length of a result in characters, for tools without their own; None takes the server's.
        guards: Checks of inputs and outputs, after the server's own; a function takes a text and returns whether it is
            forbidden.
        compaction: How conversations are kept within the model's context; None takes the server's, "off" disables it.
        forward: The headers of a request and the claims of a user's token that tools may read in `ToolContext.user`.
        metadata: JSON that capabilities report with the agent.
        repeats_calls: Whether the model may go on when a turn made the same calls of idempotent tools with the same
            results as the turn before. Otherwise its next turn is without tools, so that it answers; allow it for tools
            that are polled.

    Raises:
        ValueError: For an invalid name, a `max_steps` below 1, or two tools of one name.
    """

    name: str
    model: str = ""
    instructions: Instructions = ""
    description: str = ""
    tools: Sequence[Tool | Agent | Callable[..., Any]] = ()
    mcp_servers: Sequence[McpServer] = ()
    state: type[BaseModel] | dict[str, Any] | None = None
    state_in_prompt: bool = False
    predict_state: Sequence[PredictState] = ()
    max_steps: int = 10
    sampling: SamplingParams | None = None
    thinking: bool | None = None
    reasoning: ReasoningMode = "full"
    summarise: Callable[[str], Awaitable[str]] | None = None
    a2ui: A2ui | bool | None = None
    time_limit: float | None = None
    result_limit: int | None = None
    guards: Sequence[Guard | Hook] = ()
    compaction: Compaction | CompactionMode | Literal["off"] | None = None
    forward: Forward = NOTHING
    metadata: dict[str, Any] = field(default_factory=dict)
    repeats_calls: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"Agent name {self.name!r} is invalid: it becomes part of a URL path. "
                "Use 1 to 128 letters, digits, '.', '_' and '-'."
            )
        if self.max_steps < 1:
            raise ValueError(f"agent {self.name}: max_steps must be at least 1")
        tools = tuple(each if isinstance(each, Tool | Agent) else tool(each) for each in self.tools)
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "guards", tuple(as_guard(each) for each in self.guards))
        names = [each.name for each in tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"agent {self.name}: more than one tool is called {sorted(twice)[0]}")

    @property
    def server_tools(self) -> tuple[Tool, ...]:
        """The tools that are not agents."""
        return tuple(each for each in self.tools if isinstance(each, Tool))

    @property
    def subagents(self) -> tuple[Agent, ...]:
        """The agents among its tools."""
        return tuple(each for each in self.tools if isinstance(each, Agent))

    @property
    def a2ui_settings(self) -> A2ui:
        """Its settings for surfaces, or the defaults."""
        return self.a2ui if isinstance(self.a2ui, A2ui) else A2ui()

    def compacts(self, otherwise: CompactionMode | None) -> Compaction | None:
        """The agent's compaction settings, or `otherwise` if it has none; None if compaction is off."""
        setting = otherwise if self.compaction is None else self.compaction
        if setting is None or setting == "off":
            return None
        return setting if isinstance(setting, Compaction) else Compaction(mode=setting)

    @property
    def announces_a2ui(self) -> bool:
        """Whether the server announces to pages that the agent writes surfaces."""
        return bool(self.a2ui) and self.a2ui_settings.announce

    @property
    def shares_state(self) -> bool:
        """Whether clients see a shared state."""
        return self.state is not None or bool(self.predict_state)


def model_of(agent: Agent, models: Mapping[str, LanguageModel]) -> LanguageModel:
    """The model that an agent names; the first (key "") if it names none.

    Raises ValueError if the agent, or one that it may call, names an unknown model.
    """
    for each in family(agent):
        if each.model not in models:
            names = ", ".join(name for name in models if name) or "only the default one, which has no name here"
            raise ValueError(f"agent {each.name}: unknown model {each.model!r}; the served models are {names}")
    return models[agent.model]


def guards_of(agent: Agent, others: Guards | None) -> Guards | None:
    """The guards of an agent's caller, followed by its own; None if there are none."""
    if not agent.guards:
        return others
    return (others or Guards(())).and_also(as_guard(each) for each in agent.guards)


def family(agent: Agent) -> list[Agent]:
    """The agent and every agent that it may call, directly or indirectly."""
    return [agent, *(each for child in agent.subagents for each in family(child))]


def mcp_of(agent: Agent, shared: McpConnections | None, limits: ToolLimits) -> tuple[dict[str, McpTools], AppRequests]:
    """The MCP tools of an agent and of those that it may call, by agent name, and the handler of MCP apps' requests.

    The MCP client is imported here because most servers have no such tools. Raises ValueError for two servers with the
    same name.
    """
    from agent_server.agents.mcp.app_requests import AppRequests
    from agent_server.agents.mcp.mcp_tools import McpConnections, McpTools

    connections = shared or McpConnections()
    distinct: list[McpServer] = []
    for server in (server for each in family(agent) for server in each.mcp_servers):
        connections.add(server)
        if server not in distinct:
            distinct.append(server)
    names = [server.name for server in distinct]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"agent {agent.name}: more than one MCP server is called {sorted(twice)[0]}")
    tools = {each.name: McpTools(each.mcp_servers, connections) for each in family(agent) if each.mcp_servers}
    return tools, AppRequests(distinct, connections, limits.seconds)


def mcp_connections(
    agents: Sequence[Agent], store: Store | None, sealer: Sealer, public_url: str
) -> McpConnections | None:
    """The MCP connections that agents share; None if no agent names an MCP server.

    store, sealer, public_url: for the consent of users, who are redirected to this server's URL after signing in.
    """
    if not any(each.mcp_servers for agent in agents for each in family(agent)):
        return None
    from agent_server.agents.mcp.consent import CALLBACK_PATH, Consents
    from agent_server.agents.mcp.mcp_tools import McpConnections

    return McpConnections(None if store is None else Consents(store, sealer, public_url.rstrip("/") + CALLBACK_PATH))
