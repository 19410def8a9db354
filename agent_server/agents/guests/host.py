"""A guest behind the interface of an agent that the run manager and the routes use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from ag_ui.core import (
    AgentCapabilities,
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    ToolsCapabilities,
    TransportCapabilities,
)

from adapters.errors import RequestError
from agent_server.agents.checkpoints import open_run
from agent_server.agents.guardrails import Guards
from agent_server.agents.guests.guest import Guest, GuestError
from agent_server.agents.guests.guest_run import GuestRun
from agent_server.agents.guests.own_engine import CURRENT, OwnEngine
from agent_server.pacing import collect_yielding
from agent_server.runs import Ending, RunContext, User
from events.message import each_dict

if TYPE_CHECKING:
    from adapters.forwarded_props import ProxiedRequest
    from agent_server.agents.turn import LanguageModel


NAME_LENGTH = 128


class HostedAgent:
    """Runs a guest. The server handles ids, threads, tenants, interrupt rules, stopping and the terminal event."""

    announces_a2ui = False
    is_hosted = True
    mcp = None
    model_name = ""

    def __init__(
        self,
        guest: Guest,
        name: str,
        description: str = "",
        model: LanguageModel | None = None,
        guards: Guards | None = None,
    ) -> None:
        self.guest = guest
        self.name = name
        self.description = description
        self.guards = guards
        self._model = model

    async def run(self, context: RunContext) -> Ending:
        if context.options.raw_prompt is not None:
            raise RequestError(
                "invalid_request", f"The agent {self.name} takes messages and cannot complete a raw prompt.", "model"
            )
        if context.options.compact is not None:
            message = f"The agent {self.name} manages its conversation itself, so this server cannot compact it."
            raise RequestError("invalid_request", message, "context_management")
        opening = await open_run(context, self.name)
        stored = await collect_yielding(each_dict(opening.messages))
        return await GuestRun(self.guest, self.name, self._model, context, opening, stored, self.guards).run()

    async def close(self) -> None:
        await self.guest.close()

    async def answer_app(self, request: ProxiedRequest, user: User) -> Mapping[str, object]:
        return {"error": f"The agent {self.name} has no MCP servers."}

    def answers_call(self, name: str, declared: Collection[str]) -> bool:
        """Whether the guest answers a call: it does unless the client declared the tool."""
        return name not in declared

    def capabilities(self) -> AgentCapabilities:
        """The capabilities that the server adds to any guest. Others are unknown and therefore left out."""
        return AgentCapabilities(
            identity=IdentityCapabilities(name=self.name, type=self.guest.kind, description=self.description or None),
            transport=TransportCapabilities(streaming=True, websocket=True, http_binary=True, resumable=True),
            tools=ToolsCapabilities(client_provided=True),
            human_in_the_loop=HumanInTheLoopCapabilities(interrupts=True),
        )


def name_from(text: str) -> str:
    """A name that is valid in a URL path, derived from the guest's own."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")[:NAME_LENGTH] or "agent"


Work = TypeVar("Work")


MOST = 1000


LOST = (
    "The question that this answers is no longer open: the server restarted since, or it waited too long. "
    "Ask the agent again."
)


class PausedRuns(Generic[Work]):
    """Guests' runs that wait for an answer, by thread; beyond `capacity` the oldest is ended.

    end: ends a run's work. It is called once for each that is not resumed.
    """

    def __init__(self, end: Callable[[Work], Awaitable[None]], capacity: int = MOST) -> None:
        self._end = end
        self._capacity = capacity
        self._waiting: dict[str, tuple[Work, OwnEngine | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def add(self, thread_id: str, work: Work) -> None:
        """Keep the work of this run, together with the run's model."""
        await self.drop(thread_id)
        self._waiting[thread_id] = (work, CURRENT.get())
        while len(self._waiting) > self._capacity:
            await self.drop(next(iter(self._waiting)))

    def resume(self, thread_id: str) -> Work:
        """Take over the work that waits on a thread. From now on it generates with this run's model, although its tasks
        started in another run. Raises GuestError if nothing waits."""
        entry = self._waiting.pop(thread_id, None)
        if entry is None:
            raise GuestError(LOST)
        work, engine = entry
        if engine is not None:
            engine.continue_in(CURRENT.get())
        return work

    async def drop(self, thread_id: str) -> None:
        entry = self._waiting.pop(thread_id, None)
        if entry is not None:
            await self._end(entry[0])

    async def close(self) -> None:
        for thread_id in list(self._waiting):
            await self.drop(thread_id)
