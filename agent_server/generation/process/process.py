"""The engine in a process of its own, or in a thread for tests.

A process keeps torch's steps from delaying the server's event loop, and the server survives its death. The two are
connected by a pair of sockets; messages are MessagePack after a length of four bytes, one message per step. For either
side, the end of the stream means that the other one is gone. The child is
`python -m agent_server.generation.process.process FD`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
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
OPENMP_WAITS = {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "1"}
"""How long a thread of torch or ggml spins before it sleeps, while it waits for the others at the end of an operation:
about a millisecond. A decoding step has hundreds of operations, and waking a thread takes about as long as its share of
one of them. Threads that spin longer take cores from the one they wait for whenever the machine has other work. Read by
the OpenMP libraries, GNU's and LLVM's, when torch is imported."""
ALLOCATOR = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Makes torch's CUDA allocator extend its segments, so that less memory is lost between tensors of different sizes."""
JSON = 1
"""MessagePack's extension type for a value that is encoded as JSON."""


class ProcessLink:
    """The server's end of the connection. report: called with every message. on_lost: called once, with the reason,
    if the child ends before `close`."""

    def __init__(self, report: Callable[[Report], None], on_lost: Callable[[str], None]) -> None:
        self._report = report
        self._on_lost = on_lost
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
        self._closing = False
        self._kill_reason = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def open(self, config: Any) -> None:
        """Start the child, unless one was started early, and send it its configuration."""
        self._child, ours = _early.pop() if _early else await asyncio.to_thread(_start, logger.getEffectiveLevel())
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_MESSAGE)
        self._writer.write(_frame(config.model_dump_json().encode()))
        self._reading = asyncio.create_task(self._read(reader))

    def send(self, command: Command) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_frame(self._encoder.encode(_with_json_grammar(command))))

    def kill(self, reason: str) -> None:
        """Kill a child that does not answer; `on_lost` is then called with the reason."""
        if self._child is not None and self._child.poll() is None:
            self._kill_reason = reason
            self._child.kill()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Report messages until the child is gone; kill a child whose messages are invalid. `on_lost` is called
        whatever happens here, or callers that wait for its replies would never return."""
        try:
            while True:
                self._report(self._decoder.decode(await self._receive(reader)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            logger.exception("The engine's process sent an invalid message.")
            self.kill(f"The engine's process sent an invalid message ({type(error).__name__}: {error}).")
        if not self._closing:
            self._on_lost(await self._reap())

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        if length > MAX_MESSAGE:
            raise ValueError(f"a message of {length} bytes exceeds the limit of {MAX_MESSAGE}")
        return await reader.readexactly(length)

    async def _reap(self) -> str:
        """Wait for the child to end, kill it after STOP_SECONDS, and return why it ended."""
        child = self._child
        assert child is not None
        try:
            code = await asyncio.to_thread(child.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            code = await asyncio.to_thread(child.wait)
        if self._writer is not None:
            self._writer.close()
        if self._kill_reason:
            return self._kill_reason
        if code >= 0:
            return f"The engine's process ended with status {code}."
        return f"The engine's process was killed by {signal.Signals(-code).name}."

    async def close(self) -> None:
        """Ask the child to exit, and kill it if it does not."""
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


Child = tuple[subprocess.Popen[bytes], socket.socket]
"""A started child with the server's end of the connection."""
_early: list[Child] = []
"""Children that wait for a `ProcessLink`."""


def start_early(level: int) -> None:
    """Start the child of the next `ProcessLink` now. It imports torch and transformers while this process imports the
    server, which is most of what a small model's start takes. level: the log level of the child."""
    _early.append(_start(level))


def stop_early() -> None:
    """End the children that no `ProcessLink` has taken."""
    while _early:
        child, connection = _early.pop()
        connection.close()
        child.kill()
        child.wait()


def _start(level: int) -> Child:
    ours, theirs = socket.socketpair()
    with theirs:
        return _spawn(theirs.fileno(), level), ours


def _spawn(descriptor: int, level: int) -> subprocess.Popen[bytes]:
    """Start a new interpreter with this process's search path. It is not a fork, which torch's threads would not
    survive, and not multiprocessing's spawn, which runs the main module again."""
    return subprocess.Popen(
        [sys.executable, "-m", "agent_server.generation.process.process", str(descriptor), str(level)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        env=child_environment(),
    )


def child_environment() -> dict[str, str]:
    """Return this process's environment and search path, with OPENMP_WAITS and ALLOCATOR as defaults."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    defaults: dict[str, str] = {}
    if "OMP_WAIT_POLICY" not in os.environ:  # which the libraries' own variables would override
        defaults |= OPENMP_WAITS
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name, which the newer one would override
        defaults |= ALLOCATOR
    return {**defaults, **os.environ, "PYTHONPATH": path}


# the child


def main(descriptor: int, level: int = logging.WARNING) -> None:
    """Serve over the socket until `StopWorker` or until the server is gone. Signals are ignored, since the server
    handles them: it finishes its runs before it sends `StopWorker`. level: the log level of the server."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("agent_server").setLevel(level)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rb", buffering=1 << 20)

    gc.disable()  # until the model is loaded: imports and tokenizers make many objects and no garbage
    # Before the configuration is received, which the server may send later.
    from agent_server.generation.process.worker import work
    from agent_server.generation.scheduling.messages import EngineConfig

    gc.freeze()  # modules stay, so the collection after loading need not traverse them
    first = _receive(stream)
    if first is None:
        return
    config = EngineConfig.model_validate_json(first)
    inbox: SimpleQueue[object] = SimpleQueue()
    threading.Thread(target=_listen, args=(stream, inbox), daemon=True).start()
    encoder = msgspec.msgpack.Encoder()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        work(config, inbox, lambda report: connection.sendall(_frame(encoder.encode(report))))
    sys.stderr.flush()
    os._exit(0)  # there is nothing to save, and the exit handlers of libraries are slow and noisy


def _with_json_grammar(command: Command) -> Command:
    """Encode a command's grammar as JSON: numbers of a schema may have more than 64 bits, MessagePack's may not."""
    if not isinstance(command, Submit) or command.request.constraint is None:
        return command
    constraint = command.request.constraint
    text = msgspec.msgpack.Ext(JSON, msgspec.json.encode(constraint.value))
    request = replace(command.request, constraint=replace(constraint, value=text))
    return replace(command, request=request)


def _decode_extension(code: int, text: memoryview) -> object:
    if code != JSON:
        raise ValueError(f"Unknown MessagePack extension {code}.")
    return msgspec.json.decode(text)


def _listen(stream: object, inbox: SimpleQueue[object]) -> None:
    """Put commands into the inbox. Exit the process when the server is gone, whatever the engine is doing."""
    decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command, ext_hook=_decode_extension)
    while (message := _receive(stream)) is not None:
        inbox.put(decoder.decode(message))
    os._exit(0)


def _receive(stream: Any) -> bytes | None:
    """Read the next message; return None at the end of the stream."""
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
    """A link with the interface of ProcessLink to a worker in a thread. work: the worker's function."""

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
