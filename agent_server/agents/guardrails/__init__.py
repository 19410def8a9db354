"""Guardrails: what is read before it reaches the model or leaves the server, and what then may not go on."""

from agent_server.agents.guardrails.guard import WHERE, Forbidden, Guard, Guards, Watch, Where
from agent_server.agents.guardrails.guard_file import GuardFileError, ModelGuardEntry, load_guard_file
from agent_server.agents.guardrails.guarded_stream import GuardedStream, strings, withheld
from agent_server.agents.guardrails.hook_guard import Hook, HookGuard, as_guard
from agent_server.agents.guardrails.pattern_guard import PatternGuard
from agent_server.agents.guardrails.screening import check_documents, joined, screen

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
