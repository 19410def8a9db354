"""Runs that outlive a connection: numbered, bounded, resumable."""

from agent_server.runs.execution import Ending, OpenThread, Recorder, RunContext, Runnable
from agent_server.runs.log import EventLog, FellBehind, LogLimits, LogReader
from agent_server.runs.manager import RunLimits, RunManager
from agent_server.runs.run import Run

__all__ = [
    "Ending",
    "EventLog",
    "FellBehind",
    "LogLimits",
    "LogReader",
    "OpenThread",
    "Recorder",
    "Run",
    "RunContext",
    "RunLimits",
    "RunManager",
    "Runnable",
]
