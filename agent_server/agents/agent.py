"""What an agent is: instructions, tools and rules for one model, and the agents it can hand over to. Plain data.

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
    """An agent that a server can serve.

    name: how clients address it; "default" is what wires without agents get. model: the name of the one of several
    models that answers; "" for the first. instructions: text, or a function of the shared state that makes it.
    tools: from `@tool`, plain functions, or other agents. state: a pydantic model whose defaults are the state to
    begin with, or such an object itself; None: the agent shares no state. state_in_prompt: tell the model the
    state, too. max_steps: model turns in one run, at most. sampling and thinking: used where the request leaves
    them open. reasoning: how much of it clients see; summarise makes the summaries (default: the model does). a2ui:
    settings for surfaces that the model writes; True takes the usual ones, None offers them to pages that bring a
    catalog of their own, False to none. time_limit (seconds) and result_limit (characters): of each tool that sets
    none; None takes the server's. guards: read what comes in and goes out, besides the server's own; a function is told
    a text and says whether it may not go on. compaction: what is done about conversations that no longer fit the model;
    None takes the server's, "off" does nothing. forward: which headers of the request and claims of the user's token
    the agent's tools may read, in `ToolContext.user`; none by default.
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

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"agent {self.name!r}: a name is part of a path; letters, digits, '.', '_' and '-' make one"
            )
        if self.max_steps < 1:
            raise ValueError(f"agent {self.name}: max_steps must be at least 1")
        made = tuple(each if isinstance(each, Tool | Agent) else tool(each) for each in self.tools)
        object.__setattr__(self, "tools", made)
        object.__setattr__(self, "guards", tuple(as_guard(each) for each in self.guards))
        names = [each.name for each in made]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"agent {self.name}: more than one tool is called {sorted(twice)[0]}")

    @property
    def server_tools(self) -> tuple[Tool, ...]:
        """Every tool but the agents among them."""
        return tuple(each for each in self.tools if isinstance(each, Tool))

    @property
    def subagents(self) -> tuple[Agent, ...]:
        return tuple(each for each in self.tools if isinstance(each, Agent))

    @property
    def a2ui_settings(self) -> A2ui:
        return self.a2ui if isinstance(self.a2ui, A2ui) else A2ui()

    def compacts(self, otherwise: CompactionMode | None) -> Compaction | None:
        """What is done about long conversations; `otherwise` where the agent does not say."""
        said = otherwise if self.compaction is None else self.compaction
        if said is None or said == "off":
            return None
        return said if isinstance(said, Compaction) else Compaction(mode=said)

    @property
    def announces_a2ui(self) -> bool:
        """Whether pages are to be told that the agent writes surfaces."""
        return bool(self.a2ui) and self.a2ui_settings.announce

    @property
    def shares_state(self) -> bool:
        return self.state is not None or bool(self.predict_state)


def model_of(agent: Agent, models: Mapping[str, LanguageModel]) -> LanguageModel:
    """The model that an agent names; the first, "", where it names none. Raises ValueError for an unknown one."""
    for each in family(agent):
        if each.model not in models:
            known = ", ".join(name for name in models if name) or "one, which has no name of its own here"
            raise ValueError(f"agent {each.name}: there is no model {each.model}; the models are {known}")
    return models[agent.model]


def guards_of(agent: Agent, others: Guards | None) -> Guards | None:
    """The guards of whoever calls an agent, and its own; None if there are none."""
    if not agent.guards:
        return others
    return (others or Guards(())).and_also(as_guard(each) for each in agent.guards)


def family(agent: Agent) -> list[Agent]:
    """The agent and every agent it may call, directly or not."""
    return [agent, *(each for child in agent.subagents for each in family(child))]


def mcp_of(agent: Agent, shared: McpConnections | None, limits: ToolLimits) -> tuple[dict[str, McpTools], AppRequests]:
    """The MCP tools of an agent and of those that it may call, by their names, and what answers the tools' pages. The
    client is imported here, because most servers have no such tools. ValueError for two servers of one name."""
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
    """What agents share of MCP servers; None if they name none. store, sealer, public_url: for what users grant there,
    who come back to this server's URL."""
    if not any(each.mcp_servers for agent in agents for each in family(agent)):
        return None
    from agent_server.agents.mcp.consent import CALLBACK_PATH, Consents
    from agent_server.agents.mcp.mcp_tools import McpConnections

    return McpConnections(None if store is None else Consents(store, sealer, public_url.rstrip("/") + CALLBACK_PATH))
