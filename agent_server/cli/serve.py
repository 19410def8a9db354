"""`agent-server serve`: bind the port, show the model's loading progress, and let runs finish on SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, cast

import typer
import uvicorn
from pydantic import ValidationError

from agent_server.cli.heap import keep_collecting
from agent_server.fair_threads import SWITCH_SECONDS, FairThreads
from agent_server.generation.process.process import start_early, stop_early
from agent_server.http.middleware.connections import Connections
from agent_server.http.middleware.limited_http import LimitedProtocol
from agent_server.http.middleware.limited_websocket import LimitedWebSocket
from agent_server.settings import ConnectionLimits, ListenAddress, Settings, fault_text
from agent_server.settings.section import places

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.observability.telemetry import Telemetry

BACKLOG = 2048
SOCKET_MODE = 0o660
"""A Unix socket is for its owner and group, because anyone who can open it can use the server."""


def fail(message: str) -> NoReturn:
    """Print an error and exit with status 2."""
    print(f"agent-server: {message}", file=sys.stderr)
    raise typer.Exit(2)


class Listener(NamedTuple):
    """A listening socket. url: what clients connect to, `unix:PATH` for a Unix socket. path: the socket's file."""

    socket: socket.socket
    url: str
    path: str = ""

    def stop(self) -> None:
        self.socket.close()
        if self.path:
            Path(self.path).unlink(missing_ok=True)


def listen_all(settings: Settings) -> list[Listener]:
    """Open a listener for each address of the settings. Prints an error and exits if one of them cannot be bound."""
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
    # asyncio disables Nagle's algorithm, which would delay small frames, only if the socket's protocol is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            fail(f"Port {port} on {host} is in use. Stop what listens there, or choose another with --port.")
        if error.errno == errno.EACCES:
            fail(f"No permission to listen on port {port}. Choose one above 1023 with --port.")
        fail(f"Cannot listen on {host}:{port}: {error.strerror or error}.")
    port = listener.getsockname()[1]
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    return Listener(listener, f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}")


def _unix(path: str) -> Listener:
    # Remove the socket file of a killed server, but neither another server's nor any other file.
    mode = 0
    with suppress(OSError):
        mode = Path(path).stat().st_mode
    if mode and not stat.S_ISSOCK(mode):
        fail(f"Cannot listen on unix:{path}: the file exists and is not a socket. Choose another path with --listen.")
    if mode:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                fail(f"Cannot listen on unix:{path}: {error.strerror or error}.")
            else:
                fail(f"Another server listens on unix:{path}. Stop it, or choose another path with --listen.")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Between bind and chmod the umask decides about the file's mode, so let it keep everyone else out.
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


try:
    import uvloop
except ImportError:  # not available on Windows
    uvloop = None


STOPS = (signal.SIGINT, signal.SIGTERM)
SPARE = 256
"""File descriptors reserved for the model, the store and the engines, besides those of connections."""


def serve(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folder, GGUF file or hub name; several, each by its name or as NAME=FOLDER. Default: the demo's."
        ),
    ] = None,
    models_file: Annotated[str | None, typer.Option(help="TOML file of models with settings of their own.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    listen: Annotated[
        list[str] | None, typer.Option(help="host:port or unix:/path, instead of --host and --port (repeat).")
    ] = None,
    root_path: Annotated[
        str | None, typer.Option(help="Path under which a reverse proxy serves this server, such as /ai.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1; several (cuda:0,cuda:1) for a replica on each")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, float16, float32.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="The same for keys and values, on a CPU.")] = None,
    quantize: Annotated[str | None, typer.Option(help="Weights as int8 or int4, made when they are loaded.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads for one operation; 0 chooses by timing.")] = None,
    draft: Annotated[str | None, typer.Option(help="A smaller draft model for speculative decoding.")] = None,
    trust_remote_code: Annotated[bool | None, typer.Option(help="Run code that comes with the model.")] = None,
    max_context: Annotated[int | None, typer.Option(help="Tokens of prompt and answer, if not the model's.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="auto, embedded, vllm, or URL of an upstream engine (repeat for several).")
    ] = None,
    embedding_model: Annotated[str | None, typer.Option(help="Model or URL for /v1/embeddings.")] = None,
    reranker: Annotated[str | None, typer.Option(help="Cross-encoder or URL for /v1/rerank and /v1/score.")] = None,
    transcriber: Annotated[str | None, typer.Option(help="Model that transcribes audio (Whisper).")] = None,
    agent: Annotated[list[str] | None, typer.Option(help="my_agent.py:agent, or a URL (repeat for several).")] = None,
    mcp: Annotated[list[str] | None, typer.Option(help="File of MCP servers (repeat for several).")] = None,
    mcp_allow: Annotated[
        list[str] | None, typer.Option(help="URL or label=URL of an MCP server that requests may name (repeat).")
    ] = None,
    guard: Annotated[list[str] | None, typer.Option(help="File of guards, or guards.py:name (repeat).")] = None,
    adapter: Annotated[str | None, typer.Option(help="Folder of a LoRA adapter (needs the extra `lora`).")] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="name=folder of a LoRA adapter, served as a model (repeat).")
    ] = None,
    chat_template: Annotated[str | None, typer.Option(help="File that replaces the model's chat template.")] = None,
    format: Annotated[str | None, typer.Option(help="Output format by name instead of by analysis.")] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="Reasoning format by name.")] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="Tool call format by name.")] = None,
    served_name: Annotated[str | None, typer.Option(help="The name that clients see.")] = None,
    store: Annotated[str | None, typer.Option(help="Database URL for threads; 'memory' keeps nothing.")] = None,
    redis: Annotated[str | None, typer.Option(help="URL of a Redis, for several gateways (extra `redis`).")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="key or tenant:key (repeat); none admits everyone.")] = None,
    keys_file: Annotated[str | None, typer.Option(help="File of keys, see `agent-server keys`.")] = None,
    media_host: Annotated[list[str] | None, typer.Option(help="Host that images may be fetched from (repeat).")] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Origin that may call from a browser (repeat).")] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help="Host name that requests may use (repeat).")] = None,
    constrain_tools: Annotated[bool | None, typer.Option(help="Constrain tool calls to their schemas.")] = None,
    models_change: Annotated[str | None, typer.Option(help="on: the page may fetch and switch models; off.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve a model to AG-UI, OpenAI, Anthropic and WebSocket clients."""
    settings = read_settings(by_setting(locals()))  # all parameters, so that none can be forgotten
    listeners = listen_all(settings)
    try:
        raise typer.Exit(run_server(_serve(settings, listeners)))
    finally:
        for listener in listeners:
            listener.stop()


def by_setting(options: Mapping[str, object]) -> dict[str, object]:
    """Map a command's options to settings: `--mcp` is `mcp`, `--api-key` is `api_keys`, `--store` is `store_url`, and
    the models after the first are `models`.

    Raises KeyError for an option without a setting.
    """
    setting_names = {place.option for place in places(Settings)}
    values: dict[str, object] = {}
    for option, value in options.items():
        if option == "model" and isinstance(value, list) and value:
            values["model"], values["models"] = value[0], value[1:]
        elif (
            name := next((each for each in (option, f"{option}s", f"{option}_url") if each in setting_names), None)
        ) is None:
            raise KeyError(f"--{option} has no setting")
        else:
            values[name] = value
    return values


def read_settings(values: Mapping[str, Any]) -> Settings:
    """Build the settings; values from the command line override the environment. Prints an error and exits if one is
    invalid."""
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        fail(fault_text(error))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loops; None, for asyncio's, if uvloop is not installed."""
    return uvloop.new_event_loop if uvloop is not None else None


def run_server(main: Coroutine[Any, Any, int]) -> int:
    """Run a server's main coroutine in an event loop that other threads of this process delay little."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


class GracefulServer(uvicorn.Server):
    """A uvicorn server that refuses new work on a signal and lets running work finish before it closes connections.

    on_exit: called on the first signal, and on the second, which also ends running work. The third signal closes all
    connections at once.
    """

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.should_exit = True
        if self._signals <= 2:
            self._on_exit()
        else:
            self.force_exit = True

    def take_signals(self) -> None:
        """Handle SIGHUP (the terminal was closed) like the other signals, unless it is ignored, as under `nohup`.

        uvicorn installs its handlers while it runs and raises the signals again afterwards. Ignore them before and
        after, so that this server decides about the exit status."""
        for number in STOPS:
            signal.signal(number, lambda *_: None)
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self.handle_exit)


async def _serve(settings: Settings, listeners: list[Listener]) -> int:
    if not hub_answers_for(settings):
        return 2
    if uses_engine_process(settings):
        start_early(getattr(logging, settings.watching.log_level.upper()))
    try:
        from agent_server.http.assemble import build_server
        from agent_server.http.server import StartupError
        from agent_server.observability.telemetry import configure_logging
        from agent_server.observability.tracing import start_exporting

        configure_logging(settings.watching.log_level, settings.watching.log_format)
        start_exporting()
        try:
            server = build_server(settings)
            await server.start()
        except StartupError as error:
            print(f"agent-server: {error}", file=sys.stderr)
            return 2
        return await serve_web(server, listeners)
    finally:
        stop_early()


def uses_engine_process(settings: Settings) -> bool:
    """Return whether the embedded engine is certain to be used, in a process of its own. With vLLM installed, the
    choice needs more than the settings; see `auto_engine`."""
    from agent_server.model_files import missing_package

    embedded = settings.served.engine == ("embedded",) or (
        settings.served.engine in ((), ("auto",)) and find_spec("vllm") is None
    )
    return embedded and settings.process.engine_process and missing_package() is None


def hub_answers_for(settings: Settings) -> bool:
    """Return whether the model is local or its hub answers, and print the reason if not.

    Call it before importing the server, which takes most of the startup time. A missing package is left to
    `choose_engine` to report: without it the fetched model could not run.
    """
    from agent_server.model_files import HubUnreachableError, missing_package, require_hub

    if not settings.served.model or not settings.served.local or missing_package() is not None:
        return True
    try:
        require_hub(settings.served.model)
    except HubUnreachableError as error:
        print(f"agent-server: {error}", file=sys.stderr)
        return False
    return True


async def serve_web(server: Server, listeners: list[Listener]) -> int:
    """Serve on bound sockets until a signal. Returns the exit status."""
    from agent_server.http.app import build_app

    web = GracefulServer(web_config(build_app(server), server.settings, server.telemetry), server.begin_shutdown)
    server.on_stop = partial(setattr, web, "should_exit", True)
    watcher = asyncio.create_task(attend(server, [each.url for each in listeners]))
    web.take_signals()
    try:
        await web.serve(sockets=[each.socket for each in listeners])
    finally:
        watcher.cancel()
    return 1 if server.failed else 0


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of the settings, with no more connections than there are file descriptors for."""
    requested = settings.connections.connections
    available = descriptors(requested + SPARE) - SPARE
    return settings.connections.model_copy(update={"connections": min(requested, available)})


def descriptors(requested: int) -> int:
    """Return how many files this process may open, after raising the limit to `requested` if the system allows it."""
    if sys.platform == "win32":
        return requested
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < requested:
        soft = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return requested if soft == resource.RLIM_INFINITY else max(soft, 2 * SPARE)


def web_config(app: Any, settings: Settings, telemetry: Telemetry) -> uvicorn.Config:
    connections = Connections(connection_limits(settings), telemetry.connection_refused)
    return uvicorn.Config(
        app,
        # uvicorn calls these like the protocols' classes
        http=cast("Any", partial(LimitedProtocol, connections=connections)),
        ws=cast("Any", partial(LimitedWebSocket, connections=connections)),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=int(settings.http.drain) + 5,
        ws_max_size=settings.http.max_body,
        ws_per_message_deflate=False,  # a few KB would inflate to a maximum body, as often as a client likes
        lifespan="on",
        root_path=settings.listening.root_path,
    )


async def attend(server: Server, urls: list[str]) -> None:
    """Background work of the server: announce when it is ready, then collect garbage while it is idle."""
    await announce(server, urls)
    await keep_collecting(lambda: server.runs.active > 0 or FairThreads.any_is_busy())


async def announce(server: Any, urls: list[str]) -> None:
    """Show the progress of loading, then the URLs. If the model cannot be loaded, print why and stop the server."""
    from rich.console import Console

    console = Console(stderr=True)
    name = server.model.name
    others = [other for other in server.models if other != name]
    with console.status(f"Loading {name} ...") as line:
        async for status in server.model.states():
            share = "" if status.progress is None else f" {status.progress:.0%}"
            line.update(f"Loading {name}{share} {status.message}")
    status = server.model.status
    if status.state == "failed":
        console.print(f"agent-server: {status.message}", markup=False, highlight=False, soft_wrap=True)
        server.stop_web()
        return
    base = urls[0] if urls[0].startswith("unix:") else urls[0] + server.settings.listening.root_path
    console.print(f"{name} is ready at {' and '.join((base, *urls[1:]))}", highlight=False, soft_wrap=True)
    if others:
        console.print(f"  loaded when asked for: {', '.join(others)}", highlight=False, soft_wrap=True)
    if base.startswith("unix:"):
        return
    rows = {"AG-UI": "/agui", "CopilotKit": "/copilotkit", "OpenAI": "/v1", "Anthropic": "", "metrics": "/metrics"}
    for wire, path in rows.items():
        console.print(f"  {wire:<11}{base}{path}", highlight=False)
