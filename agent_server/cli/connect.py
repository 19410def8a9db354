"""`agent-server connect`: print the configuration with which a coding agent uses this server."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import httpx2
import typer

SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """What an agent is to use. key: "" for none. context: the tokens of prompt and answer together, None if unknown.
    images: whether the model accepts them."""

    url: str
    model: str
    key: str = ""
    context: int | None = None
    images: bool = False

    @property
    def answer(self) -> int:
        """The longest answer to plan for, of a known context."""
        return min(32_000, (self.context or 0) // 4)


def codex(target: Target) -> str:
    """For `~/.codex/config.toml`, or the one in `CODEX_HOME`."""
    provider = {"name": "agent-server", "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.key:
        provider["env_key"] = "AGENT_SERVER_API_KEY"
    settings: dict[str, object] = {"model": target.model, "model_provider": "agent-server"}
    if target.context:
        settings["model_context_window"] = target.context
    return f"{_toml(settings)}\n[model_providers.agent-server]\n{_toml(provider)}"


def claude(target: Target) -> str:
    """For a shell's profile: Claude Code reads its environment."""
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    values = {"ANTHROPIC_BASE_URL": target.url, "ANTHROPIC_API_KEY": target.key or "none"}
    values |= dict.fromkeys(names, target.model)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def copilot(target: Target) -> str:
    """For a shell's profile: GitHub Copilot CLI reads its environment."""
    values = {"COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1", "COPILOT_MODEL": target.model}
    if target.key:
        values["COPILOT_PROVIDER_API_KEY"] = target.key
    if target.context:
        values["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(target.context - target.answer)
        values["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] = str(target.answer)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def opencode(target: Target) -> str:
    """For `opencode.json` in a project, or `~/.config/opencode/opencode.json`."""
    return _opencode_json(target, "https://opencode.ai/config.json")


def kilo(target: Target) -> str:
    """For `kilo.json` in a project, or `~/.config/kilo/kilo.json`."""
    return _opencode_json(target, "https://app.kilo.ai/config.json")


def _opencode_json(target: Target, schema: str) -> str:
    model: dict[str, Any] = {"name": target.model}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.answer}
    if target.images:
        model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "agent-server",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key or "none"},
        "models": {target.model: model},
    }
    named = f"agent-server/{target.model}"
    settings = {"provider": {"agent-server": provider}, "model": named, "small_model": named}
    return json.dumps({"$schema": schema, **settings}, indent=2) + "\n"


def qwen(target: Target) -> str:
    """For `~/.qwen/settings.json`, or `.qwen/settings.json` in a project."""
    generation = {"contextWindowSize": target.context} if target.context else {}
    model = {"id": target.model, "name": target.model, "baseUrl": f"{target.url}/v1", "envKey": "AGENT_SERVER_API_KEY"}
    settings = {
        "modelProviders": {
            "openai": [{**model, "generationConfig": {**generation, "modalities": {"image": target.images}}}]
        },
        "env": {"AGENT_SERVER_API_KEY": target.key or "none"},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": target.model},
    }
    return json.dumps(settings, indent=2) + "\n"


def pi(target: Target) -> str:
    """For `~/.pi/agent/models.json`."""
    model: dict[str, Any] = {"id": target.model, "input": ["text", "image"] if target.images else ["text"]}
    if target.context:
        model |= {"contextWindow": target.context, "maxTokens": target.answer}
    provider = {
        "baseUrl": f"{target.url}/v1", "api": "openai-completions", "apiKey": target.key or "none", "models": [model],
    }  # fmt: skip
    return json.dumps({"providers": {"agent-server": provider}}, indent=2) + "\n"


def kimi(target: Target) -> str:
    """For `~/.kimi-code/config.toml`, or the one in `KIMI_CODE_HOME`."""
    provider = {"type": "openai", "base_url": f"{target.url}/v1", "api_key": target.key or "none"}
    model: dict[str, object] = {"provider": "agent-server", "model": target.model}
    model["max_context_size"] = target.context or 131_072  # required
    if target.context:
        model["max_output_size"] = target.answer
    model["capabilities"] = ["tool_use", *(["image_in"] if target.images else [])]
    return (
        f"{_toml({'default_model': target.model})}\n[providers.agent-server]\n{_toml(provider)}\n"
        f"[models.{json.dumps(target.model, ensure_ascii=False)}]\n{_toml(model)}"
    )


def vibe(target: Target) -> str:
    """For `~/.vibe/config.toml`, or the one in `VIBE_HOME`."""
    provider = {"name": "agent-server", "api_base": f"{target.url}/v1"}
    if target.key:
        provider["api_key_env_var"] = "AGENT_SERVER_API_KEY"
    model: dict[str, object] = {"name": target.model, "provider": "agent-server", "supports_images": target.images}
    if target.context:
        model |= {"max_context_length": target.context, "max_output_tokens": target.answer}
    return f"{_toml({'active_model': target.model})}\n[[providers]]\n{_toml(provider)}\n[[models]]\n{_toml(model)}"


def _toml(table: Mapping[str, object]) -> str:
    """Return a table of strings, numbers, booleans and lists of these, whose JSON is TOML."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())


def continue_dev(target: Target) -> str:
    """For `~/.continue/config.yaml`, or a file that `cn --config` names."""
    capabilities = ["tool_use", *(["image_input"] if target.images else [])]
    model: dict[str, Any] = {
        "name": target.model, "provider": "openai", "model": target.model, "apiBase": f"{target.url}/v1",
        "apiKey": target.key or "none", "roles": ["chat", "edit", "apply"], "capabilities": capabilities,
    }  # fmt: skip
    if target.context:
        model |= {"defaultCompletionOptions": {"contextLength": target.context, "maxTokens": target.answer}}
    settings = {"name": "agent-server", "version": "1.0.0", "schema": "v1", "models": [model]}
    return json.dumps(settings, indent=2) + "\n"  # JSON is YAML


def cline(target: Target) -> str:
    """For a shell, once: Cline keeps its provider."""
    options = {"provider": "openai", "apikey": target.key or "none", "modelid": target.model}
    options["baseurl"] = f"{target.url}/v1"
    return "cline auth " + " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items()) + "\n"


def aider(target: Target) -> str:
    """For `.aider.conf.yml` in a project or in the home folder."""
    settings = {"model": f"openai/{target.model}", "openai-api-base": f"{target.url}/v1"}
    settings["openai-api-key"] = target.key or "none"
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())


CLIENTS: Mapping[str, Callable[[Target], str]] = {
    "aider": aider, "claude": claude, "cline": cline, "codex": codex, "continue": continue_dev, "copilot": copilot,
    "kilo": kilo, "kimi": kimi, "opencode": opencode, "pi": pi, "qwen": qwen, "vibe": vibe,
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
    target = Target(url.rstrip("/").removesuffix("/v1"), model, api_key)
    try:
        target = described(target)
    except ValueError as error:
        if not model:
            sys.exit(str(error))
        print(f"# {error} The model's context is therefore not part of this configuration.", file=sys.stderr)
    print(f"# {(write.__doc__ or '').strip()}", file=sys.stderr)
    print(write(target), end="")


def described(target: Target) -> Target:
    """Return the target with what the server says of its model, or of the server's first if it names none. Raises
    ValueError with a sentence if the server has no answer."""
    listing = f"{target.url}/v1/models"
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    try:
        answer = httpx2.get(listing, headers=headers, timeout=SECONDS)
    except httpx2.HTTPError as error:
        message = (
            f"No server answers at {target.url} ({type(error).__name__}). Start it, or name the model with --model."
        )
        raise ValueError(message) from None
    if answer.status_code != httpx2.codes.OK:
        message = f"{listing} answered {answer.status_code}. Give a key with --api-key, or the model with --model."
        raise ValueError(message)
    models = answer.json()["data"]
    chosen = next((each for each in models if target.model in ("", each["id"])), None)
    if chosen is None:
        missing = f"no model {target.model}" if target.model else "no model"
        raise ValueError(f"The server at {target.url} has {missing}. Name one with --model.")
    images = "image" in chosen.get("architecture", {}).get("input_modalities", ())
    return replace(target, model=str(chosen["id"]), context=chosen.get("max_model_len"), images=images)
