"""`agent-server connect`: print the configuration with which a coding agent uses this server."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from typing import Annotated

import httpx2
import typer

SECONDS = 5.0


def codex(url: str, model: str, key: str) -> str:
    """For `~/.codex/config.toml`, or the one in `CODEX_HOME`."""
    keyed = '\nenv_key = "AGENT_SERVER_API_KEY"' if key else ""
    return (
        f'model = {json.dumps(model)}\nmodel_provider = "agent-server"\n\n[model_providers.agent-server]\n'
        f'name = "agent-server"\nbase_url = "{url}/v1"\nwire_api = "responses"{keyed}\n'
    )


def claude(url: str, model: str, key: str) -> str:
    """For a shell's profile: Claude Code reads its environment."""
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    values = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key or "none", **dict.fromkeys(names, model)}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def opencode(url: str, model: str, key: str) -> str:
    """For `opencode.json` in a project, or `~/.config/opencode/opencode.json`."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "agent-server",
        "options": {"baseURL": f"{url}/v1", "apiKey": key or "none"},
        "models": {model: {"name": model}},
    }
    named = f"agent-server/{model}"
    settings = {"provider": {"agent-server": provider}, "model": named, "small_model": named}
    return json.dumps({"$schema": "https://opencode.ai/config.json", **settings}, indent=2) + "\n"


def qwen(url: str, model: str, key: str) -> str:
    """For a shell's profile: Qwen Code reads its environment."""
    values = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key or "none", "OPENAI_MODEL": model}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def aider(url: str, model: str, key: str) -> str:
    """For `.aider.conf.yml` in a project or in the home folder."""
    settings = {"model": f"openai/{model}", "openai-api-base": f"{url}/v1", "openai-api-key": key or "none"}
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())


CLIENTS: dict[str, Callable[[str, str, str], str]] = {
    "aider": aider, "claude": claude, "codex": codex, "opencode": opencode, "qwen": qwen,
}  # fmt: skip


def connect(
    client: Annotated[str, typer.Argument(help=f"Which coding agent: {', '.join(CLIENTS)}.")],
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="The model's name; the server's first if absent.")] = "",
    api_key: Annotated[
        str, typer.Option(envvar="AGENT_SERVER_API_KEY", help="A key, if the server requires one.")
    ] = "",
) -> None:
    """Print the configuration that makes a coding agent use this server."""
    write = CLIENTS.get(client)
    if write is None:
        sys.exit(f"Unknown client {client!r}. Use {', '.join(CLIENTS)}.")
    url = url.rstrip("/").removesuffix("/v1")
    print(f"# {(write.__doc__ or '').strip()}", file=sys.stderr)
    if not model:
        listing = f"{url}/v1/models"
        try:
            answer = httpx2.get(
                listing, headers={"authorization": f"Bearer {api_key}"} if api_key else {}, timeout=SECONDS
            )
        except httpx2.HTTPError as error:
            sys.exit(f"No server answers at {url} ({type(error).__name__}). Start it, or name the model with --model.")
        if answer.status_code != httpx2.codes.OK:
            sys.exit(f"{listing} answered {answer.status_code}. Give a key with --api-key, or the model with --model.")
        models = answer.json()["data"]
        if not models:
            sys.exit(f"The server at {url} has no model. Name one with --model.")
        model = str(models[0]["id"])
    print(write(url, model, api_key), end="")
