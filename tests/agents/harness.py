"""One server's inside for agent tests: a model, an agent, a store, a run manager; every run is read to its end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

from ag_ui.core import Message, ResumeEntry, RunAgentInput, Tool, UserMessage

from agent_server.agents import Agent, Sealer, ToolLimits, serve_agents
from agent_server.runs import Run, RunManager
from agent_server.runs.store import Store
from agent_server.settings import RunLimits
from events.lifecycle import Verifier
from events.message import Folder
from events.options import GenerationOptions
from events.vocabulary import Event
from tests.agents.models import Model

E = TypeVar("E")


class House:
    """Ask it things; it keeps the client's side of the conversation as the real client does."""

    def __init__(self, agents: Agent | Sequence[Agent], model: Model, store: Store | None = None, **more: Any) -> None:
        self.model = model
        self.store = store
        agents = [agents] if isinstance(agents, Agent) else list(agents)
        self.served = serve_agents(
            agents,
            model,
            sealer=more.get("sealer") or Sealer(),
            limits=more.get("limits") or ToolLimits(),
            compaction=more.get("compaction"),
            store=store,
            public_url=more.get("public_url", ""),
        )
        self._count = itertools.count(more.get("first_id", 1))
        self.manager = RunManager(
            self.served, store=store, limits=RunLimits(**more.get("run_limits", {})), new_id=self.new_id
        )
        self.messages: list[dict[str, Any]] = []
        self.state: Any = None
        self.runs = itertools.count(1)

    @property
    def options(self) -> GenerationOptions:
        return GenerationOptions(store=self.store is not None)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._count)}"

    async def __aenter__(self) -> House:
        await self.model.engine.start()
        if self.store is not None:
            await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.close(0)
        for agent in self.served.values():
            await agent.close()
        await self.model.engine.close()
        if self.store is not None:
            await self.store.close()

    def input(self, text: str | None = None, **more: Any) -> RunAgentInput:
        if text is not None:
            self.messages.append({"id": f"user_{next(self._count)}", "role": "user", "content": text})
        given = {
            "threadId": "t",
            "runId": f"run_{next(self.runs)}",
            "messages": self.messages,
            "state": self.state,
            **more,
        }
        return RunAgentInput.model_validate(given)

    async def start(
        self, text: str | None = None, *, options: GenerationOptions | None = None, agent: str = "default", **more: Any
    ) -> Run:
        chosen = options or self.options
        return await self.manager.start(self.input(text, **more), chosen, agent=agent)

    async def ask(self, text: str | None = None, **more: Any) -> list[Event]:
        """A run's events, checked against the lifecycle and folded into the client's messages and state."""
        run = await self.start(text, **more)
        return await self.follow(run)

    async def follow(self, run: Run) -> list[Event]:
        events = [event async for _, event in run.events()]
        verifier = Verifier(strict=True)
        folder = Folder(self.messages, self.state)
        for event in events:
            verifier.check(event)
            folder.add(event)
        assert folder.issues == []
        self.messages = [message for message in folder.messages if message["role"] != "activity"]
        self.state = folder.state
        self.folder = folder
        return events

    async def resume(self, *entries: dict[str, Any], **more: Any) -> list[Event]:
        return await self.ask(resume=[ResumeEntry.model_validate(entry) for entry in entries], **more)


def of(events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def names(events: Sequence[Event]) -> list[str]:
    """Types in order, with runs of deltas as one."""
    return [name for name, _ in itertools.groupby(type(event).__name__ for event in events)]


def client_tool(name: str) -> Tool:
    schema = {"type": "object", "properties": {"color": {"type": "string"}}}
    return Tool(name=name, description=name, parameters=schema)


def said(text: str) -> Message:
    return UserMessage(id="u", content=text)
