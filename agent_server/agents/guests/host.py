"""A guest as the run manager and the routes see an agent."""

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
from agent_server.runs import Ending, Recorder, RunContext, User
from events.message import each_dict

if TYPE_CHECKING:
    from adapters.forwarded_props import ProxiedRequest
    from agent_server.agents.turn import LanguageModel


NAME_LENGTH = 128


class HostedAgent:
    """Runs a guest. Ids, threads, tenants, the rules of interrupts, stop and the terminal event are the server's."""

    announces_a2ui = False
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

    async def run(self, context: RunContext, recorder: Recorder) -> Ending:
        if context.options.raw_prompt is not None:
            raise RequestError(
                "invalid_request", f"The agent {self.name} takes messages: it cannot complete a prompt.", "model"
            )
        if context.options.compact is not None:
            message = f"The agent {self.name} keeps its conversation itself: it cannot be made short here."
            raise RequestError("invalid_request", message, "context_management")
        opening = await open_run(context, self.name)
        stored = await collect_yielding(each_dict(opening.messages))
        guards = self.guards
        return await GuestRun(self.guest, self.name, self._model, context, recorder, opening, stored, guards).run()

    async def close(self) -> None:
        await self.guest.close()

    async def answer_app(self, request: ProxiedRequest, user: User) -> Mapping[str, object]:
        return {"error": f"The agent {self.name} has no MCP servers."}

    def answers_call(self, name: str, declared: Collection[str]) -> bool:
        """A guest calls its own tools; those that the client declared are the client's."""
        return name not in declared

    def capabilities(self) -> AgentCapabilities:
        """What the server adds to any guest. The rest is unknown, and so left out."""
        return AgentCapabilities(
            identity=IdentityCapabilities(name=self.name, type=self.guest.kind, description=self.description or None),
            transport=TransportCapabilities(streaming=True, websocket=True, http_binary=True, resumable=True),
            tools=ToolsCapabilities(client_provided=True),
            human_in_the_loop=HumanInTheLoopCapabilities(interrupts=True),
        )


def name_from(wanted: str) -> str:
    """A name that can stand in a path, made from the guest's own."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted).strip("-")[:NAME_LENGTH] or "agent"


Work = TypeVar("Work")


MOST = 1000


LOST = (
    "The question that this answers was asked by a server that has ended since, or it waited too long. "
    "Ask the agent again."
)


class Held(Generic[Work]):
    """What waits, by thread; at most `most`, of which the oldest is ended first.

    end: ends a piece of work. It is called once for each that is not taken.
    """

    def __init__(self, end: Callable[[Work], Awaitable[None]], most: int = MOST) -> None:
        self._end = end
        self._most = most
        self._waiting: dict[str, tuple[Work, OwnEngine | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def keep(self, thread_id: str, work: Work) -> None:
        """Hold the work of this run, which used this run's model."""
        await self.drop(thread_id)
        self._waiting[thread_id] = (work, CURRENT.get())
        while len(self._waiting) > self._most:
            await self.drop(next(iter(self._waiting)))

    def take(self, thread_id: str) -> Work:
        """Go on with what waits on a thread: it generates with this run's model from now on, although its tasks began
        in another run. Raises GuestError where nothing waits."""
        found = self._waiting.pop(thread_id, None)
        if found is None:
            raise GuestError(LOST)
        work, before = found
        if before is not None:
            before.continued_by(CURRENT.get())
        return work

    async def drop(self, thread_id: str) -> None:
        found = self._waiting.pop(thread_id, None)
        if found is not None:
            await self._end(found[0])

    async def close(self) -> None:
        for thread_id in list(self._waiting):
            await self.drop(thread_id)
