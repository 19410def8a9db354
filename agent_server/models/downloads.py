"""Downloads of models from the hub, one at a time in a thread, which can be paused and resumed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from agent_server.model_files.pulling import PullError, discard, fetch, look_up

State = Literal["queued", "downloading", "paused", "complete", "failed"]


class Download(msgspec.Struct):
    """The state of one download. source: what to serve once it is complete. message: why it failed."""

    name: str
    state: State = "queued"
    bytes: int = 0
    total: int = 0
    source: str = ""
    message: str = ""


class _Stopped(Exception):
    """Interrupts a download that was paused or discarded."""


class Downloads:
    """All downloads of a server. most: limit in bytes on all downloaded models together; 0 for the free disk space."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._by_name: dict[str, Download] = {}
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def describe(self) -> list[Download]:
        return list(self._by_name.values())

    def start(self, name: str) -> None:
        """Start or resume a download. Does nothing if it is already running."""
        with self._lock:
            existing = self._by_name.get(name)
            if existing is not None and existing.state in ("queued", "downloading"):
                return
            download = self._by_name[name] = Download(name)
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="pull")
            self._thread.submit(self._run, download)

    def pause(self, name: str) -> None:
        """Stop a download and keep what was received."""
        with self._lock:
            if (existing := self._by_name.get(name)) is not None and existing.state in ("queued", "downloading"):
                existing.state = "paused"

    def discard(self, name: str) -> None:
        """Stop a download and remove what was received. Blocks until the thread has stopped it. Raises PullError."""
        self.pause(name)
        if self._thread is not None:
            self._thread.submit(lambda: None).result()
        with self._lock:
            self._by_name.pop(name, None)
        discard(name)

    def close(self) -> None:
        for name in list(self._by_name):
            self.pause(name)
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, download: Download) -> None:
        try:
            if not self._change_state(download, "downloading"):
                return
            model = look_up(download.name)
            download.total, download.source = model.bytes, model.source

            def tell(done: int) -> None:
                download.bytes = done
                if download.state != "downloading":
                    raise _Stopped

            fetch(model, self._most, tell)
            self._change_state(download, "complete")
        except _Stopped:
            pass
        except PullError as error:
            download.message = str(error)
            self._change_state(download, "failed")
        except Exception as error:
            download.message = f"{type(error).__name__}: {error}"
            self._change_state(download, "failed")

    def _change_state(self, download: Download, state: State) -> bool:
        with self._lock:
            if download.state == "paused":
                return False
            download.state = state
            return True
