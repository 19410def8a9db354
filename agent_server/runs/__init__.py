"""Runs that outlive a connection: numbered, bounded, resumable."""

from agent_server.runs.execution import Ending, OpenThread, Recorder, Resumption, RunContext, Runnable
from agent_server.runs.log import EventLog, FellBehind, LogReader
from agent_server.runs.manager import RunManager
from agent_server.runs.run import Run
from agent_server.user import NOBODY, Forward, User, current_user

__all__ = [
    "NOBODY",
    "Ending",
    "EventLog",
    "FellBehind",
    "Forward",
    "LogReader",
    "OpenThread",
    "Recorder",
    "Resumption",
    "Run",
    "RunContext",
    "RunManager",
    "Runnable",
    "User",
    "current_user",
]
