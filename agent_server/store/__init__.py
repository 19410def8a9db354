"""Threads, kept: messages, state, runs, interrupts and feedback."""

from agent_server.store.records import FeedbackRecord, InterruptRecord, Removal, RunRecord, ThreadRecord, ThreadState
from agent_server.store.store import Store

__all__ = ["FeedbackRecord", "InterruptRecord", "Removal", "RunRecord", "Store", "ThreadRecord", "ThreadState"]
