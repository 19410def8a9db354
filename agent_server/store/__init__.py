"""Threads, kept: messages, state, runs, interrupts and feedback."""

from agent_server.store.records import FeedbackRecord, InterruptRecord, RunRecord, ThreadRecord, ThreadState
from agent_server.store.store import Store

__all__ = ["FeedbackRecord", "InterruptRecord", "RunRecord", "Store", "ThreadRecord", "ThreadState"]
