"""The engine's main loop: load the model, then step while there is work and sleep while there is none."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.core.step import Core
from agent_server.generation.faults import DeviceLost
from agent_server.generation.loading.loader import MakeCompiler, load
from agent_server.generation.recorded.flat import InterruptibleRecording, RecordingInterrupted
from agent_server.generation.scheduling.messages import (
    EngineConfig,
    Loading,
    MetricsReport,
    Ready,
    Replies,
    Report,
    RequestFailed,
    WorkerFailed,
)

logger = logging.getLogger("agent_server.generation")
Send = Callable[[Report], None]
MEASURE_SECONDS = 0.25
"""Time between two reports of metrics while the engine steps."""
REPORT_SECONDS = 0.1
"""The same while the forward is recorded."""
RECORD_AFTER = 2.0
"""Idle seconds after which the model's forward is recorded. Recording it at the start would delay readiness."""


def work(config: EngineConfig, inbox: SimpleQueue[Any], send: Send, compiler: MakeCompiler | None = None) -> None:
    """Load the model and serve commands from `inbox` until StopWorker. Errors are reported, not raised."""
    try:
        core, info = load(config, lambda status: send(Loading(status)), compiler)
    except EngineError as error:
        send(WorkerFailed(RequestFailed.of(error)))
        return
    core.inbox = inbox
    gc.collect()
    gc.freeze()
    gc.enable()
    send(Ready(info))
    try:
        run(core, send)
    except DeviceLost as error:
        _report_failure(core, send, f"{error} The engine is being restarted.")
    except Exception:
        logger.exception("The engine stops because of an internal error.")
        _report_failure(core, send, "The engine stopped because of an internal error.")


def _report_failure(core: Core, send: Send, message: str) -> None:
    """End all generations with an error, and report that this worker has failed."""
    error = EngineError("internal", message, retryable=True)
    send(Replies(core.end_all(error)))
    send(WorkerFailed(RequestFailed.of(error)))


def _record_forward(core: Core, record: Callable[[], None], send: Send) -> None:
    """Record the model's forward, which takes seconds. A command that arrives ends the recording, which is begun anew
    when the core is idle again. Metrics are reported meanwhile, since a silent process would be restarted."""
    finished = threading.Event()

    def report() -> None:
        while not finished.wait(REPORT_SECONDS):
            send(MetricsReport(core.metrics()))

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        with InterruptibleRecording(lambda: not core.inbox.empty()):
            record()
        core.record = None
    except RecordingInterrupted:
        pass
    except Exception:
        core.record = None
        logger.exception("The model's forward could not be recorded, so it runs as it is.")
    finally:
        finished.set()
        reporter.join()


def run(core: Core, send: Send) -> None:
    """Step until StopWorker, with metrics in between. Without work it sleeps until the next command."""
    reported_at = 0.0
    while not core.stopped:
        if core.idle:
            send(MetricsReport(core.metrics()))
            core.wait(None if core.record is None else RECORD_AFTER)
            if core.record is not None and core.idle and core.inbox.empty() and not core.stopped:
                _record_forward(core, core.record, send)
        replies = core.step()
        if replies:
            send(Replies(replies))
        now = time.monotonic()
        if now - reported_at > MEASURE_SECONDS:
            reported_at = now
            send(MetricsReport(core.metrics()))
    send(Replies(core.end_all(EngineError("unavailable", "The engine was closed.", retryable=True))))
