"""Models that are being fetched from the hub: one after another in a thread, each paused and resumed as asked."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from agent_server.model_files.pulling import PullError, discard, fetch, look_up

State = Literal["queued", "downloading", "paused", "complete", "failed"]


class Download(msgspec.Struct):
    """source: what to serve once it is complete. message: why it failed."""

    name: str
    state: State = "queued"
    bytes: int = 0
    total: int = 0
    source: str = ""
    message: str = ""


class _Stopped(Exception):
    """Breaks off a download that was paused or discarded."""


class Downloads:
    """most: bytes that all fetched models may take together; 0 for what the disk has."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._known: dict[str, Download] = {}
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def describe(self) -> list[Download]:
        return list(self._known.values())

    def start(self, name: str) -> None:
        """Begin, or go on behind what came before. One that is under way already is left alone."""
        with self._lock:
            known = self._known.get(name)
            if known is not None and known.state in ("queued", "downloading"):
                return
            download = self._known[name] = Download(name)
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="pull")
            self._thread.submit(self._run, download)

    def pause(self, name: str) -> None:
        """Stop, and keep what came."""
        with self._lock:
            if (known := self._known.get(name)) is not None and known.state in ("queued", "downloading"):
                known.state = "paused"

    def discard(self, name: str) -> None:
        """Stop, and remove what came. Blocks while the thread lets go of it. Raises PullError."""
        self.pause(name)
        if self._thread is not None:
            self._thread.submit(lambda: None).result()
        with self._lock:
            self._known.pop(name, None)
        discard(name)

    def close(self) -> None:
        for name in list(self._known):
            self.pause(name)
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, download: Download) -> None:
        try:
            if not self._moves(download, "downloading"):
                return
            model = look_up(download.name)
            download.total, download.source = model.bytes, model.source

            def tell(done: int) -> None:
                download.bytes = done
                if download.state != "downloading":
                    raise _Stopped

            fetch(model, self._most, tell)
            self._moves(download, "complete")
        except _Stopped:
            pass
        except PullError as error:
            download.message = str(error)
            self._moves(download, "failed")
        except Exception as error:
            download.message = f"{type(error).__name__}: {error}"
            self._moves(download, "failed")

    def _moves(self, download: Download, state: State) -> bool:
        with self._lock:
            if download.state == "paused":
                return False
            download.state = state
            return True
