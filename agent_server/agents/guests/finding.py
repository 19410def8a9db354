"""What is to be served: agents of ours, of other frameworks, and elsewhere. A framework is found out by the classes of
the object, so that none is imported that is not used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
KNOWN = (
    "an Agent, a LangGraph graph, a pydantic-ai, Agno or AG2 agent, a LlamaIndex workflow, a RemoteAgent, or anything "
    "with a method "
    "run(RunAgentInput) that gives AG-UI events"
)


class NamedGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest and what clients call it."""

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
    """The objects and what the references name: `file.py:attribute`, `package.module:attribute`, a URL, `name=URL`.
    headers, forward: of the agents at URLs, by the agents' names. Raises LoadError."""
    found = [named("", each) for each in objects]
    for reference in references:
        if (remote := at_url(reference, headers, forward)) is not None:
            found.append(remote)
            continue
        found += [named(name, each) for name, each in _objects(reference).items()]
    names = [each.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LoadError(f"Two agents are called {twice[0]}; give each its own name.")
    remote_names = {each.name for each in found if isinstance(each, NamedGuest) and isinstance(each.guest, RemoteAgent)}
    for option, given in (("agent_headers", headers), ("agent_forward", forward)):
        if unknown := sorted(given.keys() - remote_names):
            known = ", ".join(sorted(remote_names)) or "none"
            raise LoadError(f"{option} are given for {unknown[0]}, which is no agent at a URL; those are: {known}.")
    return found


def at_url(
    reference: str, headers: Mapping[str, Mapping[str, SecretStr]], forward: Mapping[str, object]
) -> NamedGuest | None:
    """The agent at a URL; None for a reference that is none. Without a name it gets the last part of its path, or its
    host. LoadError for headers that HTTP cannot carry."""
    name, _, url = reference.rpartition("=") if reference.partition("=")[2].startswith("http") else ("", "", reference)
    if not url.startswith(("http://", "https://")):
        return None
    parts = urlsplit(url)
    last = parts.path.rstrip("/").rpartition("/")[2]
    chosen = name_from(name or last or parts.hostname or "")
    own = {key: value.get_secret_value() for key, value in headers.get(chosen, {}).items()}
    for key, value in own.items():
        if not HEADER.fullmatch(key) or not value.isprintable():
            raise LoadError(f"agent_headers of {chosen}: {key!r} is no header, or its value has control characters.")
    try:
        policy = forward_of(forward.get(chosen, {}))
    except ValueError as error:
        raise LoadError(f"agent_forward of {chosen}: {error}.") from error
    return NamedGuest(name=chosen, guest=RemoteAgent(url, name=chosen, headers=own, forward=policy))


def named(name: str, found: object) -> Named:
    """An object as what is served of it. name: used where the object has none. Raises LoadError."""
    if isinstance(found, Agent | NamedGuest):
        return found
    guest = guest_of(found)
    if guest is None:
        raise LoadError(f"{name or type(found).__name__} is not {KNOWN}.")
    own, description = getattr(found, "name", None), getattr(found, "description", None)
    chosen = own if isinstance(own, str) and own not in ("", "LangGraph") else name or guest.kind
    return NamedGuest(
        name=name_from(chosen), guest=guest, description=description if isinstance(description, str) else ""
    )


def guest_of(found: object) -> Guest | None:
    """The guest that an object is; None if it is of no kind that is known. LoadError for one whose `run` is not
    AG-UI's."""
    if isinstance(found, RemoteAgent):
        return found
    if (package := type(found).__module__.partition(".")[0]) in ELSEWHERE:
        raise LoadError(
            f"An agent of {package} does not run here. Serve it with its own AG-UI endpoint and give its URL "
            "with --agent."
        )
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(found).__mro__}
    for base, make in FRAMEWORKS.items():
        if base in bases:
            return _made(make, found)
    return PlainGuest(found) if callable(getattr(found, "run", None)) and not isinstance(found, type) else None


ELSEWHERE = frozenset({"autogen", "agents", "crewai", "strands", "agent_framework"})
"""Packages whose agents have a `run` that takes something else."""
EXTRAS: Mapping[str, str] = {
    "langgraph": "langgraph", "langchain_core": "langgraph", "pydantic_ai": "pydantic-ai", "agno": "agno", "ag2": "ag2",
    "llama_index": "llama-index", "workflows": "llama-index",
}  # fmt: skip
"""A framework's top package → the extra of this server that installs what serving its agents needs."""


def _made(make: Callable[[object], Guest], found: object) -> Guest:
    """LoadError where the framework is there and something that its bridge needs is not."""
    try:
        return make(found)
    except GuestError as error:
        raise LoadError(str(error)) from error
    except ImportError as error:
        package = next(base.__module__.partition(".")[0] for base in type(found).__mro__[-2::-1]
                       if base.__module__.partition(".")[0] in EXTRAS)  # fmt: skip
        raise LoadError(f"{error}. {_needed(package)}") from error


def _needed(package: str) -> str:
    return f"Agents of {package} need: pip install 'agent-server[{EXTRAS[package]}]'"


def _objects(reference: str) -> Mapping[str, object]:
    """`load_objects`, which says of a missing framework how to get it."""
    try:
        return load_objects(reference)
    except LoadError as error:
        missing = error.__cause__
        package = (missing.name or "").partition(".")[0] if isinstance(missing, ModuleNotFoundError) else ""
        if package in EXTRAS:
            raise LoadError(f"{error}. {_needed(package)}") from missing
        raise


def _langgraph(found: object) -> Guest:
    from langgraph.pregel import Pregel

    from agent_server.agents.guests.langgraph_guest import LangGraphGuest

    assert isinstance(found, Pregel)
    return LangGraphGuest(found)


def _pydantic_ai(found: object) -> Guest:
    from pydantic_ai.agent import AbstractAgent

    from agent_server.agents.guests.pydantic_ai_guest import PydanticAiGuest

    assert isinstance(found, AbstractAgent)
    return PydanticAiGuest(found)


def _agno(found: object) -> Guest:
    from agno.agent import Agent as AgnoAgent
    from agno.team import Team

    from agent_server.agents.guests.agno_guest import AgnoGuest

    assert isinstance(found, AgnoAgent | Team)
    return AgnoGuest(found)


def _ag2(found: object) -> Guest:
    from ag2 import Agent as Ag2Agent

    from agent_server.agents.guests.ag2_guest import Ag2Guest

    assert isinstance(found, Ag2Agent)
    return Ag2Guest(found)


def _llama_index(found: object) -> Guest:
    from workflows import Workflow

    from agent_server.agents.guests.llama_index_guest import LlamaIndexGuest

    assert isinstance(found, Workflow)
    return LlamaIndexGuest(found)


FRAMEWORKS: Mapping[tuple[str, str], Callable[[object], Guest]] = {
    ("langgraph", "Pregel"): _langgraph,
    ("pydantic_ai", "AbstractAgent"): _pydantic_ai,
    ("agno", "Agent"): _agno,
    ("agno", "Team"): _agno,
    ("ag2", "Agent"): _ag2,
    ("workflows", "Workflow"): _llama_index,
}
"""(top package, name of a class among the object's bases) → what makes a guest of it."""


def serve_named(
    found: Sequence[Named],
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
    """Agents by name, for the run manager and the routes. The first one also answers as "default" if none is called
    that; without any, the default one is the model as it is. ValueError for two of one name."""
    own = [each for each in found if isinstance(each, Agent)]
    guests = [each for each in found if isinstance(each, NamedGuest)]
    names = [each.name for each in found]
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
    if found and "default" not in names:
        served["default"] = served[names[0]] if isinstance(found[0], NamedGuest) else served["default"]
    return served
