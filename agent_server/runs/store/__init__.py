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
from agent_server.runs.store.removal import Erasure, Extent, Removed
from agent_server.runs.store.store import Store

__all__ = [
    "Conclusion",
    "Erasure",
    "Extent",
    "FeedbackRecord",
    "InterruptRecord",
    "KeptRecord",
    "Removal",
    "Removed",
    "RunRecord",
    "SavedEvents",
    "Store",
    "StoreUnavailable",
    "Superseded",
    "ThreadRecord",
    "ThreadState",
]
