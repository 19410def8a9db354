"""The store: threads with their messages, state, runs, interrupts and feedback."""

from agent_server.runs.store.connections import StoreUnavailable, Superseded
from agent_server.runs.store.records import (
    Conclusion,
    FeedbackRecord,
    InterruptRecord,
    KeptRecord,
    Removal,
    RunRecord,
    SavedEvents,
    ThreadRecord,
    ThreadState,
)
from agent_server.runs.store.removal import Erasure, RemovalScope, RemovedCounts
from agent_server.runs.store.store import Store

__all__ = [
    "Conclusion",
    "Erasure",
    "FeedbackRecord",
    "InterruptRecord",
    "KeptRecord",
    "Removal",
    "RemovalScope",
    "RemovedCounts",
    "RunRecord",
    "SavedEvents",
    "Store",
    "StoreUnavailable",
    "Superseded",
    "ThreadRecord",
    "ThreadState",
]
