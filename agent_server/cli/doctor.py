"""`agent-server doctor`: what this machine computes models with, and what is missing or slow."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.engine_choice import auto_engine, named_model
from agent_server.http.server import StartupError
from agent_server.model_files import missing_package
from agent_server.settings import Settings

PACKAGES = ("torch", "transformers", "triton", "llguidance", "gguf", "vllm")


def doctor(
    model: Annotated[str, typer.Argument(help="A model's folder, GGUF file or hub name.")] = "",
    device: Annotated[str, typer.Option(help="As for `serve`.")] = "",
) -> None:
    """Show what this machine computes models with: packages, device, kernels and the engine that `serve` chooses.

    Loads no model. Ends with status 1 if something is missing or slower than it could be, and says what to do.
    """
    settings = Settings()
    if model:
        settings = settings.model_copy(update={"served": settings.served.model_copy(update={"model": model})})
    if device:
        settings = settings.model_copy(update={"compute": settings.compute.model_copy(update={"device": device})})
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed"
        typer.echo(f"{package:<13} {found}")
    if (missing := missing_package()) is not None:
        typer.echo(f"Models cannot be computed here without {missing}: pip install 'agent-server[local]'.")
        raise typer.Exit(1)
    try:
        source, name = named_model(settings)
        engine, reason = auto_engine(settings, source)
        slow = _describe_device(settings.compute.device)
    except (EngineError, StartupError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{'engine':<13} {engine} for {name}. {reason}")
    for sentence in slow:
        typer.echo(f"slow: {sentence}")
    if slow:
        raise typer.Exit(1)


def _describe_device(name: str) -> list[str]:
    """Print what is known of the device, and try its kernels in a common shape. Return a sentence for each that cannot
    be used. Raises EngineError for a device that is absent."""
    import torch

    from agent_server.generation.attention.batches import LayerShape
    from agent_server.generation.device import NO_COMPILER, choose_device, choose_dtype, find_compiler, free_bytes
    from agent_server.generation.loading.attention_kernels import choose
    from agent_server.generation.sampling.fused_sampler import FusedSampler, make_sampler

    device = choose_device(name.split(",")[0].strip())
    dtype = choose_dtype("auto", device)
    memory = f"{free_bytes(device) / 2**30:.1f} GiB free"
    if device.type != "cuda":
        typer.echo(f"{'device':<13} {device}, {torch.get_num_threads()} threads, {memory}")
        return []
    card = torch.cuda.get_device_properties(device)
    typer.echo(f"{'device':<13} {device}, {card.name}, compute capability {card.major}.{card.minor}, {memory}")
    compiler = find_compiler()
    typer.echo(f"{'C compiler':<13} {compiler or 'none'}")
    slow = [] if compiler else [NO_COMPILER]
    kernel = choose(device, dtype, [LayerShape(8, 128, 128)], slow)
    typer.echo(f"{'attention':<13} {kernel.name if kernel else 'torch, page by page'}")
    sampler = make_sampler(8, 32000, device, slow)
    typer.echo(f"{'sampler':<13} {'fused' if isinstance(sampler, FusedSampler) else 'sorting'}")
    return slow
