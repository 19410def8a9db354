"""`agent-server worker`: serve one engine to gateways in other processes or on other machines."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agent_server.cli.heap import keep_collecting
from agent_server.cli.serve import (
    GracefulServer,
    Listener,
    by_setting,
    hub_answers_for,
    listen_at,
    read_settings,
    run_server,
    web_config,
)
from agent_server.settings import ListenAddress, Settings

if TYPE_CHECKING:
    from agent_server.http.worker_app import Worker


def worker(
    model: Annotated[str, typer.Argument(help="Folder, GGUF file or hub name. Default: the demo's.")] = "",
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, float16, float32.")] = None,
    quantize: Annotated[str | None, typer.Option(help="Weights as int8 or int4, made when they are loaded.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads for one operation; 0 chooses by timing.")] = None,
    draft: Annotated[str | None, typer.Option(help="A smaller draft model for speculative decoding.")] = None,
    trust_remote_code: Annotated[bool | None, typer.Option(help="Run code that comes with the model.")] = None,
    max_context: Annotated[int | None, typer.Option(help="Tokens of prompt and answer, if not the model's.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Serve this engine instead of the embedded one.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Folder of a LoRA adapter (needs the extra `lora`).")] = None,
    served_name: Annotated[str | None, typer.Option(help="The name that gateways see.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Key that gateways must present (repeat).")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve a model's engine to gateways: `agent-server serve MODEL --engine worker+http://HOST:PORT`."""
    settings = read_settings(by_setting({**locals(), "model": model or None}))
    listener = listen_at(ListenAddress(settings.listening.host, settings.listening.port))
    try:
        raise typer.Exit(run_server(_serve(settings, listener)))
    finally:
        listener.stop()


async def _serve(settings: Settings, listener: Listener) -> int:
    if not hub_answers_for(settings):
        return 2
    from agent_server.http.auth import Keys
    from agent_server.http.engine_choice import choose_engine, named_model
    from agent_server.http.server import StartupError
    from agent_server.http.worker_app import Worker, worker_app
    from agent_server.observability.telemetry import configure_logging

    configure_logging(settings.watching.log_level, settings.watching.log_format)
    try:
        source, name = named_model(settings)
        served = Worker(choose_engine(settings, source, name), drain=settings.http.drain)
    except StartupError as error:
        print(f"agent-server: {error}", file=sys.stderr)
        return 2
    keys = Keys(key.get_secret_value() for key in settings.access.api_keys)
    web = GracefulServer(web_config(worker_app(served, keys), settings, served.telemetry), served.begin_shutdown)
    watcher = asyncio.create_task(_announce(served, web, name, listener.socket.getsockname()))
    web.take_signals()
    try:
        await web.serve(sockets=[listener.socket])
    finally:
        watcher.cancel()
    return 1 if served.failure else 0


async def _announce(served: Worker, web: GracefulServer, name: str, address: tuple[str, int]) -> None:
    """Print a line when the engine is ready. If it cannot be loaded, print why and stop."""
    await served.settled.wait()
    if served.failure is not None:
        print(f"agent-server: {served.failure}", file=sys.stderr)
        web.should_exit = True
        return
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    print(f"The engine of {name} is ready at worker+http://{host}:{address[1]}", file=sys.stderr, flush=True)
    await keep_collecting(lambda: served.busy)
