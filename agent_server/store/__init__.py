"""Threads, kept: messages, state, runs, interrupts and feedback."""

from agent_server.store.records import (
    Conclusion,
    FeedbackRecord,
    InterruptRecord,
    KeptRecord,
    Removal,
    RunRecord,
    ThreadRecord,
    ThreadState,
)
from agent_server.store.store import Store

__all__ = [
    "Conclusion",
    "FeedbackRecord",
    "InterruptRecord",
    "KeptRecord",
    "Removal",
    "RunRecord",
    "Store",
    "ThreadRecord",
    "ThreadState",
]
