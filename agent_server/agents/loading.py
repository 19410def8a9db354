"""Agents named on the command line: `path/to/file.py:attribute` or `package.module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from agent_server.agents.agent import Agent


class LoadError(Exception):
    """Why an agent cannot be loaded, in one sentence."""


def load_agents(references: Sequence[str]) -> list[Agent]:
    """The agents that the references name. An attribute may be one agent or a list of them; with none given, every
    agent in the module is taken. Raises LoadError."""
    found = [agent for reference in references for agent in _load(reference)]
    names = [agent.name for agent in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LoadError(f"Two agents are called {twice[0]}; give each its own name.")
    return found


def _load(reference: str) -> list[Agent]:
    agents = list(load_objects(reference).values())
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise LoadError(f"{reference} is not an Agent or a list of them.")
    return [agent for agent in agents if isinstance(agent, Agent)]


def load_objects(reference: str) -> Mapping[str, object]:
    """What a reference names, by its names in the module: its attribute, or everything in the module that is an Agent.
    Raises LoadError."""
    place, attribute = _split(reference)
    module = _module(place)
    if not attribute:
        agents = {value.name: value for value in vars(module).values() if isinstance(value, Agent)}
        if not agents:
            raise LoadError(f"{place} has no Agent. Name what is to be served: {place}:attribute.")
        return agents
    found = getattr(module, attribute, None)
    if found is None:
        raise LoadError(f"{place} has nothing called {attribute}.")
    if isinstance(found, list | tuple):
        return {f"{attribute}-{number}": each for number, each in enumerate(found, 1)}
    return {attribute: found}


def _split(reference: str) -> tuple[str, str]:
    place, colon, attribute = reference.rpartition(":")
    if not colon or "/" in attribute or "\\" in attribute:  # C:\agents.py
        return reference, ""
    return place, attribute


def _module(place: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix == ".py" or path.exists():
            return _from_file(path)
        return importlib.import_module(place)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"Cannot load {place}: {type(error).__name__}: {error}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"There is no file {path}.")
    name = f"agent_server_user_{path.stem}_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module
