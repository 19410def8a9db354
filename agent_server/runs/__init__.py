"""Runs that outlive a connection: numbered, bounded, resumable."""

from agent_server.runs.execution import Ending, OpenThread, Recorder, Resumption, RunContext, Runnable
from agent_server.runs.log import EventLog, FellBehind, LogReader
from agent_server.runs.manager import RunManager
from agent_server.runs.run import Run

__all__ = [
    "Ending",
    "EventLog",
    "FellBehind",
    "LogReader",
    "OpenThread",
    "Recorder",
    "Resumption",
    "Run",
    "RunContext",
    "RunManager",
    "Runnable",
]
