"""The engine in a process of its own, or in a thread for tests.

A torch step never delays the server's event loop, and the process's death is survived. A pair of sockets joins the two;
messages are MessagePack behind a length of four bytes, one message a step. Either side takes the end of the stream for
the other's death. The child is `python -m agent_server.generation.process.process FD`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec
from msgspec.structs import replace

from agent_server.generation.scheduling.messages import Command, Report, StopWorker, Submit

logger = logging.getLogger("agent_server.generation")
LENGTH_BYTES = 4
MAX_MESSAGE = 256 * 2**20
STOP_SECONDS = 5.0
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""How threads of torch wait for each other at the end of an operation: asleep. Spinning, they take the cores from the
one that all wait for wherever the machine has other work. Read by the OpenMP libraries when torch is imported."""
JSON = 1
"""MessagePack's extension type for a value that is carried as JSON."""


class ProcessLink:
    """The server's end. `report` is called with every message, `lost` once, with the reason, when the child is gone
    without having been asked to."""

    def __init__(self, report: Callable[[Report], None], lost: Callable[[str], None]) -> None:
        self._report = report
        self._lost = lost
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
        self._closing = False
        self._killed = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def open(self, config: Any) -> None:
        """Start the child and hand it its configuration."""
        ours, theirs = socket.socketpair()
        try:
            self._child = await asyncio.to_thread(_spawn, theirs.fileno())
        finally:
            theirs.close()
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_MESSAGE)
        self._writer.write(_frame(config.model_dump_json().encode()))
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, command: Command) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_frame(self._encoder.encode(_carried(command))))

    def kill(self, reason: str) -> None:
        """End a child that does not answer; `lost` is then called with the reason."""
        if self._child is not None and self._child.poll() is None:
            self._killed = reason
            self._child.kill()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Report what comes until the child is gone; a child that cannot be understood is ended. Whatever happens here,
        `lost` is called, or callers that wait for its answers would never return."""
        try:
            while True:
                self._report(self._decoder.decode(await self._receive(reader)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            logger.exception("A message of the engine's process cannot be used.")
            self.kill(f"The engine's process sent a message that cannot be used ({type(error).__name__}: {error}).")
        if not self._closing:
            self._lost(await self._reap())

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        if length > MAX_MESSAGE:
            raise ValueError(f"{length} bytes in one message, at most {MAX_MESSAGE} are allowed")
        return await reader.readexactly(length)

    async def _reap(self) -> str:
        """Why the child is gone."""
        assert self._child is not None
        code = await asyncio.to_thread(_end, self._child)
        if self._writer is not None:
            self._writer.close()
        if self._killed:
            return self._killed
        if code >= 0:
            return f"The engine's process ended with status {code}."
        return f"The engine's process was killed by {signal.Signals(-code).name}."

    async def close(self) -> None:
        """Ask the child to go, then insist."""
        if self._closing:
            return
        self._closing = True
        if self._child is not None and self._reading is not None:
            self.send(StopWorker())
            await asyncio.wait({self._reading}, timeout=STOP_SECONDS)
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            await self._reap()


def _frame(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter with our search path. Not a fork, which torch's threads would not survive, and not
    multiprocessing's spawn, which runs the main module again."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "agent_server.generation.process.process",
            str(descriptor),
            str(logger.getEffectiveLevel()),
        ],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        env=child_environment(),
    )


def child_environment() -> dict[str, str]:
    """This process's environment, where it says nothing else with threads that wait asleep, and our search path."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**PASSIVE, **os.environ, "PYTHONPATH": path}


def _end(child: subprocess.Popen[bytes]) -> int:
    """The status of a child that is about to end, or is made to."""
    try:
        return child.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


# the child


def main(descriptor: int, level: int = logging.WARNING) -> None:
    """Serve over the socket until `StopWorker` or until the server is gone. Signals are the server's business: it lets
    its runs end before it says `StopWorker`. level: the server's, from which on this process logs too."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("agent_server").setLevel(level)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rb", buffering=1 << 20)
    first = _receive(stream)
    if first is None:
        return

    from agent_server.generation.process.worker import work
    from agent_server.generation.scheduling.messages import EngineConfig

    config = EngineConfig.model_validate_json(first)
    inbox: SimpleQueue[object] = SimpleQueue()
    threading.Thread(target=_listen, args=(stream, inbox), daemon=True).start()
    encoder = msgspec.msgpack.Encoder()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        work(config, inbox, lambda report: connection.sendall(_frame(encoder.encode(report))))
    sys.stderr.flush()
    os._exit(0)  # nothing to save; libraries that tidy up at exit take long and complain


def _carried(command: Command) -> Command:
    """With a grammar as JSON: numbers of a schema may have more than 64 bits, those of MessagePack may not."""
    if not isinstance(command, Submit) or command.request.constraint is None:
        return command
    constraint = command.request.constraint
    text = msgspec.msgpack.Ext(JSON, msgspec.json.encode(constraint.value))
    request = replace(command.request, constraint=replace(constraint, value=text))
    return replace(command, request=request)


def _arrived(code: int, text: memoryview) -> object:
    if code != JSON:
        raise ValueError(f"There is no extension {code}.")
    return msgspec.json.decode(text)


def _listen(stream: object, inbox: SimpleQueue[object]) -> None:
    """Commands into the inbox; without a server there is nothing left to do, whatever the engine is doing."""
    decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command, ext_hook=_arrived)
    while (message := _receive(stream)) is not None:
        inbox.put(decoder.decode(message))
    os._exit(0)


def _receive(stream: Any) -> bytes | None:
    """The next message; None at the end."""
    try:
        head = stream.read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return None
        message: bytes = stream.read(int.from_bytes(head, "little"))
    except OSError:
        return None
    return message


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))


THREAD_STOP_SECONDS = 30.0


class ThreadLink:
    """The same contract as ProcessLink's. `work` is the worker's function."""

    def __init__(self, report: Callable[[Report], None], work: Callable[..., None]) -> None:
        self._report = report
        self._work = work
        self._inbox: SimpleQueue[object] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self, config: object) -> None:
        loop = asyncio.get_running_loop()

        def send(report: Report) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._report, report)

        self._thread = threading.Thread(target=self._work, args=(config, self._inbox, send), name="engine", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def close(self) -> None:
        if self._thread is not None:
            self.send(StopWorker())
            await asyncio.to_thread(self._thread.join, THREAD_STOP_SECONDS)
