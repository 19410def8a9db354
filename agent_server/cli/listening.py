"""What a command listens on: TCP addresses and Unix sockets. One that cannot be had ends it with a sentence."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, NoReturn

import typer

from agent_server.settings import ListenAddress, Settings

BACKLOG = 2048
SOCKET_MODE = 0o660
"""A Unix socket is for its owner and group: who may open it may use the server without passing a network."""


def fail(message: str) -> NoReturn:
    """Print the sentence and end the command with status 2."""
    print(f"agent-server: {message}", file=sys.stderr)
    raise typer.Exit(2)


class Listener(NamedTuple):
    """A socket that listens. url: what a client is told of it, `unix:PATH` for a Unix socket. path: of its file."""

    socket: socket.socket
    url: str
    path: str = ""

    def stop(self) -> None:
        self.socket.close()
        if self.path:
            Path(self.path).unlink(missing_ok=True)


def listen_all(settings: Settings) -> list[Listener]:
    """A listener for each address of the settings. Prints a sentence and exits if one of them cannot be bound."""
    with ExitStack() as bound:
        listeners = []
        for address in settings.listening.addresses:
            listeners.append(listener := listen_at(address))
            bound.callback(listener.stop)
        bound.pop_all()
    return listeners


def listen_at(address: ListenAddress) -> Listener:
    listener = _unix(address.path) if address.path else _tcp(address.host, address.port)
    listener.socket.listen(BACKLOG)
    listener.socket.setblocking(False)
    return listener


def _tcp(host: str, port: int) -> Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off, so that small frames are sent at once, only if the socket's protocol is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        fail(_why_not(error, host, port))
    port = listener.getsockname()[1]
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    return Listener(listener, f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}")


def _unix(path: str) -> Listener:
    _remove_unused(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Between bind and chmod the file has the mode that the umask leaves, so the umask closes it to everyone.
    before = os.umask(0o177)
    try:
        listener.bind(path)
        Path(path).chmod(SOCKET_MODE)
    except OSError as error:
        listener.close()
        fail(f"Cannot listen on unix:{path}: {error.strerror or error}.")
    finally:
        os.umask(before)
    return Listener(listener, f"unix:{path}", path)


def _remove_unused(path: str) -> None:
    """Remove the socket file that a server left which was killed. Exits if one is answering, or it is another file."""
    try:
        found = Path(path).stat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(found):
        fail(f"Cannot listen on unix:{path}: a file that is not a socket is there.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            fail(f"Cannot listen on unix:{path}: {error.strerror or error}.")
        else:
            fail(f"Another server listens on unix:{path}. Stop it, or choose another path with --listen.")


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use. Stop what listens there, or choose another with --port."
    if error.errno == errno.EACCES:
        return f"This user may not listen on port {port}. Choose one above 1023 with --port."
    return f"Cannot listen on {host}:{port}: {error.strerror or error}."
