"""Guardrails: checks of what reaches the model and of what leaves the server."""

from agent_server.agents.guardrails.guard import (
    WHERE,
    Forbidden,
    Guard,
    GuardFileError,
    Guards,
    Hook,
    HookGuard,
    ModelGuardEntry,
    PatternGuard,
    Watch,
    Where,
    as_guard,
    load_guard_file,
)
from agent_server.agents.guardrails.guarded_stream import (
    GuardedStream,
    check_documents,
    joined,
    screen,
    strings,
    withheld,
)

__all__ = [
    "WHERE",
    "Forbidden",
    "Guard",
    "GuardFileError",
    "GuardedStream",
    "Guards",
    "Hook",
    "HookGuard",
    "ModelGuardEntry",
    "PatternGuard",
    "Watch",
    "Where",
    "as_guard",
    "check_documents",
    "joined",
    "load_guard_file",
    "screen",
    "strings",
    "withheld",
]
