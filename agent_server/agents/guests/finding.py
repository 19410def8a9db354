"""Find the agents to serve: our own, other frameworks', and remote ones. A framework is recognised by the classes of
the object, so that unused frameworks are not imported."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from pydantic import SecretStr

from agent_server.agents import Agent, CompactionMode, LoadError, Sealer, load_objects, serve_agents
from agent_server.agents.guardrails import Guards
from agent_server.agents.guests.guest import Guest, GuestError
from agent_server.agents.guests.host import HostedAgent, name_from
from agent_server.agents.guests.plain_guest import PlainGuest
from agent_server.agents.guests.remote_agent import RemoteAgent
from agent_server.runs.store import Store
from agent_server.settings import ToolLimits
from agent_server.user import forward_of

if TYPE_CHECKING:
    from agent_server.agents import ServedAgent
    from agent_server.agents.turn import LanguageModel

HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110, "token")."""
SUPPORTED_KINDS = (
    "an Agent, a LangGraph graph, a pydantic-ai, Agno or AG2 agent, a LlamaIndex workflow, a RemoteAgent, or anything "
    "with a method run(RunAgentInput) that yields AG-UI events"
)


class NamedGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest and the name that clients use for it."""

    name: str
    guest: Guest
    description: str = ""


Named = Agent | NamedGuest


def load_named(
    references: Sequence[str],
    objects: Sequence[object] = (),
    headers: Mapping[str, Mapping[str, SecretStr]] = MappingProxyType({}),
    forward: Mapping[str, object] = MappingProxyType({}),
) -> list[Named]:
    """Load the objects and the agents that the references name: `file.py:attribute`, `package.module:attribute`, a URL,
    or `name=URL`. headers, forward: for agents at URLs, by the agents' names. Raises LoadError."""
    agents = [named("", each) for each in objects]
    for reference in references:
        if (remote := at_url(reference, headers, forward)) is not None:
            agents.append(remote)
            continue
        try:
            objects_by_name = load_objects(reference)
        except LoadError as error:
            missing = error.__cause__
            package = (missing.name or "").partition(".")[0] if isinstance(missing, ModuleNotFoundError) else ""
            if package in EXTRAS:
                raise LoadError(f"{error}. {_needed(package)}") from missing
            raise
        agents += [named(name, each) for name, each in objects_by_name.items()]
    names = [each.name for each in agents]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LoadError(f"Two agents are called {twice[0]}; give each its own name.")
    remote_names = {
        each.name for each in agents if isinstance(each, NamedGuest) and isinstance(each.guest, RemoteAgent)
    }
    for option, values in (("agent_headers", headers), ("agent_forward", forward)):
        if unknown := sorted(values.keys() - remote_names):
            known_names = ", ".join(sorted(remote_names)) or "none"
            raise LoadError(f"{option} names {unknown[0]}, which is not an agent at a URL. Those are: {known_names}.")
    return agents


def at_url(
    reference: str, headers: Mapping[str, Mapping[str, SecretStr]], forward: Mapping[str, object]
) -> NamedGuest | None:
    """The agent at a URL; None if the reference is not a URL. Without a name it is called by the last part of the path,
    or by its host. Raises LoadError for headers that are invalid in HTTP."""
    name, _, url = reference.rpartition("=") if reference.partition("=")[2].startswith("http") else ("", "", reference)
    if not url.startswith(("http://", "https://")):
        return None
    parts = urlsplit(url)
    last = parts.path.rstrip("/").rpartition("/")[2]
    agent_name = name_from(name or last or parts.hostname or "")
    own = {key: value.get_secret_value() for key, value in headers.get(agent_name, {}).items()}
    for key, value in own.items():
        if not HEADER.fullmatch(key) or not value.isprintable():
            raise LoadError(
                f"agent_headers of {agent_name}: {key!r} is not a valid header name, or its value has control codes."
            )
    try:
        policy = forward_of(forward.get(agent_name, {}))
    except ValueError as error:
        raise LoadError(f"agent_forward of {agent_name}: {error}.") from error
    return NamedGuest(name=agent_name, guest=RemoteAgent(url, name=agent_name, headers=own, forward=policy))


def named(name: str, value: object) -> Named:
    """The agent or guest to serve for an object. name: used if the object has none. Raises LoadError."""
    if isinstance(value, Agent | NamedGuest):
        return value
    guest = guest_of(value)
    if guest is None:
        raise LoadError(f"{name or type(value).__name__} is not {SUPPORTED_KINDS}.")
    own, description = getattr(value, "name", None), getattr(value, "description", None)
    raw_name = own if isinstance(own, str) and own not in ("", "LangGraph") else name or guest.kind
    return NamedGuest(
        name=name_from(raw_name), guest=guest, description=description if isinstance(description, str) else ""
    )


def guest_of(value: object) -> Guest | None:
    """Wrap an object as a guest; None for an unknown kind. Raises LoadError for a framework whose `run` does not speak
    AG-UI."""
    if isinstance(value, RemoteAgent):
        return value
    if (package := type(value).__module__.partition(".")[0]) in UNSUPPORTED_PACKAGES:
        raise LoadError(
            f"Agents of {package} cannot run in this server. Serve it with its own AG-UI endpoint and pass its URL "
            "with --agent."
        )
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    for base, (module, guest_class) in FRAMEWORKS.items():
        if base not in bases:
            continue
        try:
            guest: Guest = getattr(importlib.import_module(f"{__package__}.{module}"), guest_class)(value)
            return guest
        except GuestError as error:
            raise LoadError(str(error)) from error
        except ImportError as error:  # the framework is installed, but not everything that its bridge needs
            packages = (each.__module__.partition(".")[0] for each in type(value).__mro__[-2::-1])
            package = next(each for each in packages if each in EXTRAS)
            raise LoadError(f"{error}. {_needed(package)}") from error
    return PlainGuest(value) if callable(getattr(value, "run", None)) and not isinstance(value, type) else None


UNSUPPORTED_PACKAGES = frozenset({"autogen", "agents", "crewai", "strands", "agent_framework"})
"""Packages whose agents have a `run` with a different signature."""
EXTRAS: Mapping[str, str] = {
    "langgraph": "langgraph", "langchain_core": "langgraph", "pydantic_ai": "pydantic-ai", "agno": "agno", "ag2": "ag2",
    "llama_index": "llama-index", "workflows": "llama-index",
}  # fmt: skip
"""A framework's top package → the extra of this server that installs what serving its agents needs."""


def _needed(package: str) -> str:
    return f"Agents of {package} need: pip install 'agent-server[{EXTRAS[package]}]'"


FRAMEWORKS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("langgraph", "Pregel"): ("langgraph_guest", "LangGraphGuest"),
    ("pydantic_ai", "AbstractAgent"): ("pydantic_ai_guest", "PydanticAiGuest"),
    ("agno", "Agent"): ("agno_guest", "AgnoGuest"),
    ("agno", "Team"): ("agno_guest", "AgnoGuest"),
    ("ag2", "Agent"): ("ag2_guest", "Ag2Guest"),
    ("workflows", "Workflow"): ("llama_index_guest", "LlamaIndexGuest"),
}
"""(top package, name of a class among the object's bases) → the module of this package and the class in it. Only
the frameworks of the agents that are served are imported."""


def serve_named(
    named_agents: Sequence[Named],
    model: LanguageModel,
    *,
    sealer: Sealer | None = None,
    limits: ToolLimits | None = None,
    models: Mapping[str, LanguageModel] | None = None,
    guards: Guards | None = None,
    compaction: CompactionMode | None = None,
    store: Store | None = None,
    public_url: str = "",
) -> Mapping[str, ServedAgent | HostedAgent]:
    """The agents by name, for the run manager and the routes.

    The first one also answers as "default" if none has that name; without any, "default" is the bare model. Raises
    ValueError for two with the same name.
    """
    own = [each for each in named_agents if isinstance(each, Agent)]
    guests = [each for each in named_agents if isinstance(each, NamedGuest)]
    names = [each.name for each in named_agents]
    if len(set(names)) != len(names):
        raise ValueError("two agents have the same name")
    served: dict[str, ServedAgent | HostedAgent] = dict(
        serve_agents(
            own,
            model,
            sealer=sealer,
            limits=limits,
            models=models,
            guards=guards,
            compaction=compaction,
            store=store,
            public_url=public_url,
        )
    )
    served |= {each.name: HostedAgent(each.guest, each.name, each.description, model, guards) for each in guests}
    if named_agents and "default" not in names:
        served["default"] = served[names[0]] if isinstance(named_agents[0], NamedGuest) else served["default"]
    return served
