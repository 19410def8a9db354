"""Threads, kept: messages, state, runs, interrupts and feedback."""

from agent_server.store.records import (
    FeedbackRecord,
    InterruptRecord,
    RunRecord,
    ThreadRecord,
    ThreadState,
)

__all__ = ["FeedbackRecord", "InterruptRecord", "RunRecord", "ThreadRecord", "ThreadState"]
