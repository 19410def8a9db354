"""Load what the command line names: agents, as `path/to/file.py:attribute` or `package.module:attribute`, and files of
MCP servers in the form that other hosts use, `{"mcpServers": {"name": {...}}}`.

A server has `command`, `args`, `env` and `cwd` for stdio, or `url`, `headers` and `oauth` ({"clientId", "clientSecret",
"issuer"} and optionally "scope") for streamable HTTP. `${NAME}`, `${env:NAME}` and `${NAME:-default}` in strings are
environment variables. Further keys: `disabled`; `autoApprove` or `alwaysAllow`, names of tools that need no approval
while all others do; `approval`, "always", "never" or "writes"; `tools`, by name {"approval": "always" or "never",
"enabled": false}; `prefix`; and `timeLimit` in seconds. Other keys, which other hosts use, are ignored.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from agent_server.agents.agent import Agent
from agent_server.agents.mcp.mcp_server import ClientCredentials, McpServer, UserConsent
from agent_server.user import NOTHING, Forward

logger = logging.getLogger("agent_server.mcp")
Approval = Literal["always", "never", "writes"]
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
CONSENT = "authorization_code"
HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")


class LoadError(Exception):
    """An agent or a file of MCP servers cannot be loaded; the message is one sentence."""


def load_agents(references: Sequence[str]) -> list[Agent]:
    """Load the agents that the references name. An attribute may be one agent or a list of them; without an attribute,
    every agent in the module is loaded. Raises LoadError."""
    agents: list[Agent] = []
    for reference in references:
        loaded = load_objects(reference).values()
        if not loaded or not all(isinstance(each, Agent) for each in loaded):
            raise LoadError(f"{reference} is not an Agent or a list of them.")
        agents += [each for each in loaded if isinstance(each, Agent)]
    names = [agent.name for agent in agents]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LoadError(f"Two agents are called {twice[0]}; give each its own name.")
    return agents


def load_objects(reference: str) -> Mapping[str, object]:
    """Load the objects that a reference names, by their names in the module: its attribute or, without one, every Agent
    in the module. Raises LoadError."""
    module_path, colon, attribute = reference.rpartition(":")
    if not colon or "/" in attribute or "\\" in attribute:  # C:\agents.py
        module_path, attribute = reference, ""
    path = Path(module_path)
    try:
        is_file = path.suffix == ".py" or path.exists()
        module = _load_file(path) if is_file else importlib.import_module(module_path)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"Cannot load {module_path}: {type(error).__name__}: {error}") from error
    if not attribute:
        agents = {value.name: value for value in vars(module).values() if isinstance(value, Agent)}
        if not agents:
            raise LoadError(f"{module_path} defines no Agent. Name the object to serve: {module_path}:attribute.")
        return agents
    value = getattr(module, attribute, None)
    if value is None:
        raise LoadError(f"{module_path} has no attribute {attribute!r}.")
    if isinstance(value, list | tuple):
        return {f"{attribute}-{number}": each for number, each in enumerate(value, 1)}
    return {attribute: value}


def _load_file(path: Path) -> ModuleType:
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


# ---- MCP servers ----------------------------------------------------------------------------------------------------


class ToolRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's settings for one tool."""

    approval: Literal["always", "never"] | None = None
    enabled: bool = True


class ServerEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One server of the file; see the module's docstring."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    oauth: dict[str, object] | None = None
    forward: Forward = NOTHING
    type: str = ""
    disabled: bool = False
    auto_approve: tuple[str, ...] | None = None
    always_allow: tuple[str, ...] | None = None
    approval: Approval | None = None
    tools: dict[str, ToolRule] = {}
    prefix: str = ""
    time_limit: float | None = None


class _File(msgspec.Struct, frozen=True, rename="camel"):
    mcp_servers: dict[str, object]


def load_mcp_file(path: Path, environment: Mapping[str, str]) -> list[McpServer]:
    """Load the servers that a file names, without disabled ones. Raises LoadError with a sentence about the file."""
    try:
        text = path.read_bytes()
        file = msgspec.json.decode(text, type=_File)
    except OSError as error:
        raise LoadError(f"The MCP file {path} cannot be read: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f'{path} is not a file of MCP servers, {{"mcpServers": {{...}}}}: {error}.') from error
    servers: list[McpServer] = []
    for name, wire in file.mcp_servers.items():
        try:
            entry = msgspec.convert(_expanded(wire, environment), ServerEntry)
            if entry.disabled:
                continue
            _check(entry)
            requires_approval: bool | Literal["writes"] = entry.approval == "always"
            if entry.approval == "writes":
                requires_approval = "writes"
            elif entry.approval is None:  # a list of tools without approval implies that all others need it
                requires_approval = entry.auto_approve is not None or entry.always_allow is not None
            approvals = dict.fromkeys([*(entry.auto_approve or ()), *(entry.always_allow or ())], False)
            for tool, rule in entry.tools.items():
                if rule.approval is not None:
                    approvals[tool] = rule.approval == "always"
            servers.append(
                McpServer(
                    name=name,
                    command=(entry.command, *entry.args) if entry.command else (),
                    url=entry.url,
                    env=entry.env,
                    cwd=entry.cwd,
                    headers=entry.headers,
                    oauth=_oauth(entry.oauth),
                    forward=entry.forward,
                    prefix=entry.prefix,
                    time_limit=entry.time_limit,
                    without=frozenset(tool for tool, rule in entry.tools.items() if not rule.enabled),
                    requires_approval=requires_approval,
                    approvals=approvals,
                )
            )
        except (ValueError, msgspec.ValidationError) as error:
            raise LoadError(f"{path}: {name}: {error}.") from error
    return servers


def _oauth(oauth: dict[str, object] | None) -> ClientCredentials | UserConsent | None:
    """This server's own client credentials, if the entry has an issuer and a secret and names no other grant; otherwise
    the consent of each user. Keys of other hosts, such as a callback port, are ignored."""
    if oauth is None:
        return None
    has_own_secret = "issuer" in oauth and bool({"clientSecret", "privateKey"} & oauth.keys())
    grant = oauth.get("grant", "client_credentials" if has_own_secret else CONSENT)
    if grant not in (CONSENT, "client_credentials"):
        raise ValueError(f"unknown grant {grant!r}; use {CONSENT} or client_credentials")
    if grant == CONSENT:
        return msgspec.convert(oauth, UserConsent)
    return msgspec.convert(oauth, ClientCredentials)


def _check(entry: ServerEntry) -> None:
    """Raise ValueError for an entry that cannot be connected to, or that would expose a secret in a list of servers."""
    if bool(entry.command) == bool(entry.url):
        raise ValueError("give either a command or a url")
    if not entry.url:
        return
    parts = urlsplit(entry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"the url must begin with http:// or https://, and {entry.url.split('?')[0]!r} does not")
    if parts.username or parts.password:
        raise ValueError("the url must not contain credentials; put them in headers")
    if entry.type and entry.type not in HTTP_TYPES:
        raise ValueError(f"the type {entry.type!r} is not supported; use stdio or streamable HTTP")


def _expanded(value: object, environment: Mapping[str, str]) -> object:
    """Substitute environment variables in all strings of a value. Raises ValueError for one that is not set."""

    def substitute(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in environment:
            return environment[name]
        if default is None:
            raise ValueError(f"the environment variable {name} is not set")
        return default

    if isinstance(value, str):
        return _VARIABLE.sub(substitute, value)
    if isinstance(value, list):
        return [_expanded(each, environment) for each in value]
    return {key: _expanded(each, environment) for key, each in value.items()} if isinstance(value, dict) else value
