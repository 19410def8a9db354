"""What is served, with which engine, and how prompts are made and output is parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, SecretStr, field_validator

from agent_server.settings.section import FIXED, Names, Option, Section, read_object
from events.sampling import PARAMETERS, OptionError, SamplingParams


class ServedSettings(Section):
    """The model, its engine and its agents."""

    title: ClassVar[str] = "What is served"

    model: str = ""
    """Folder, GGUF file or hub name of the model; empty for the bundled demonstration model."""
    models: Names = ()
    """Further models, each a folder, a GGUF file, a hub name or `name=folder`; each is served under its name and loaded
    at its first use."""
    models_file: Path | None = None
    """TOML file with a table for each model and its settings: `[name]`, `model = "folder"`, `dtype = "bfloat16"`."""
    served_name: str = ""
    """The name that clients see; empty for the folder's or file's name or the last part of the hub name."""
    engine: Names = ()
    """Empty or "auto" for vLLM in this process on CUDA, where it is installed and takes the model and the settings, and
    for the embedded engine elsewhere; "embedded" and "vllm" for one of them, "scripted" for scripted answers, otherwise
    URLs of upstream engines, optionally with a dialect (`http://host:8000`, `vllm+http://host:8000`)."""
    vllm: Annotated[dict[str, object], BeforeValidator(read_object)] = {}
    """Engine arguments of vLLM in this process (`--engine vllm`), as JSON: {"tensor_parallel_size": 2}."""
    embedding_model: str = ""
    """Folder or hub name of the embedding model for `/v1/embeddings`, or the URL of an upstream with one, followed by
    `#` and the model's name if it has several."""
    reranker: str = ""
    """Folder or hub name of the cross-encoder for `/v1/rerank` and `/v1/score`, or the URL of an upstream with one,
    followed by `#` and the model's name if it has several."""
    transcriber: str = ""
    """Folder or hub name of a Whisper model, which transcribes for `/v1/audio/transcriptions` and for the microphone of
    CopilotKit's pages; needs the extra `audio`."""
    agent: Names = ()
    """The agents to serve, each as `path/to/file.py:attribute`, `package.module:attribute` or a URL."""
    agent_headers: Annotated[dict[str, dict[str, SecretStr]], BeforeValidator(read_object)] = {}
    """Headers for agents at URLs, as JSON: {"weather": {"Authorization": "Bearer ..."}}. Never logged."""
    agent_forward: Annotated[dict[str, dict[str, object]], BeforeValidator(read_object)] = {}
    """Parts of a request that are forwarded to agents at URLs, as JSON: {"weather": {"headers": ["x-team"], "claims":
    {"email": "x-user-email"}, "user": "x-user-id"}}. Nothing by default, and never keys or cookies."""
    mcp: Names = ()
    """Files of MCP servers, `{"mcpServers": {...}}` as in other hosts; every agent gets their tools."""
    mcp_allow: Names = ()
    """MCP servers that requests may name (`mcp` tools of Responses, `mcp_servers` of Messages), each a URL or
    `label=URL`; none by default. The one with the label `web_search` answers Responses' hosted web search."""
    guard: Names = ()
    """Guards for input and output: TOML files of patterns, phrases and guard models, or `file.py:attribute` for
    functions and guards of your own."""
    compaction: Literal["off", "summarise", "drop"] = "off"
    """What to do with stored conversations that no longer fit the model: replace the oldest messages by a summary, or
    leave them out. An agent's own `compaction` takes precedence."""
    chat_template: Path | None = None
    """File with a chat template that is used instead of the model's."""

    @property
    def local(self) -> bool:
        """Whether the model is computed here, by the embedded engine or by vLLM in this process."""
        return self.engine in ((), ("auto",), ("embedded",), ("vllm",))


class PoolSettings(Section):
    """When models are loaded and unloaded."""

    title: ClassVar[str] = "What is served"

    idle: Annotated[float, Option("model_idle")] = Field(0, ge=0)
    """Seconds without use after which a model is unloaded until it is used again; 0 keeps it."""
    budget: Annotated[int, Option("models_memory")] = Field(0, ge=0)
    """Bytes that the weights and caches of all loaded models may take together; the least recently used one is unloaded
    for the next. 0 unloads one only if the device has no memory left."""


class DownloadSettings(Section):
    """Models that the demonstration page downloads and switches to."""

    title: ClassVar[str] = "What is served"
    prefix: ClassVar[str] = "models_"

    change: Literal["auto", "on", "off"] = "auto"
    """Whether the page may download models from the hub and switch the served one; auto allows it on a server without
    keys that listens only on this machine's own addresses."""
    disk: int = Field(100_000_000_000, ge=0)
    """Bytes that downloaded models may take together; 0 for all of the disk except two gigabytes."""


class PromptSettings(Section):
    """How prompts are made. format, reasoning_parser, tool_call_parser: replace the format that the analysis has
    detected, completely or in part."""

    title: ClassVar[str] = "How output is read"

    format: str = ""
    """Name of the output format, used instead of the detected one; an unknown name is refused with a list of all
    names."""
    reasoning_parser: str = ""
    """Name of the format whose reasoning is used; tool calls stay as detected."""
    tool_call_parser: str = ""
    """Name of the format whose tool calls are used; reasoning stays as detected."""
    render_seconds: Annotated[float, Option("render_time_limit")] = Field(5, gt=0)
    """Seconds for rendering one prompt, and for waiting until it is rendered."""
    chat_template: Annotated[str | None, FIXED] = None
    """The template's text, used instead of the model's."""
    context_length: Annotated[int | None, FIXED] = None
    """In tokens; None for the model's own."""
    allowed_kwargs: Annotated[frozenset[str], FIXED] = frozenset()
    """Template variables that a request may set besides the thinking switches."""
    max_characters: Annotated[int, FIXED] = 4_000_000
    """The limit on a request's data and on the rendered prompt."""


class OutputSettings(Section):
    """How output is parsed and sent, for requests that do not set it themselves. The values of undeclared and failed
    are those of events.formats.output_format.Tools."""

    title: ClassVar[str] = "How output is read"

    delivery: Literal["immediate", "adaptive"] = "immediate"
    """`adaptive` sends reasoning by sentences and arguments at JSON boundaries."""
    boundaries: Literal["lenient", "strict"] | None = None
    """`strict` accepts a call only directly after the reasoning or another call, `lenient` accepts text between them;
    none for the setting of the model's format."""
    undeclared: Annotated[Literal["keep", "drop", "content"] | None, Option("undeclared_tools")] = None
    """What to do with a call of a tool that the request does not declare; none for the setting of the model's
    format."""
    failed: Annotated[Literal["content", "text", "drop", "error"] | None, Option("failed_calls")] = None
    """What to do with text after a call's marker that is not a call; "error" ends the run with
    tool_call_parse_error."""
    unmarked_calls: Literal["strict", "lenient"] = "lenient"
    """`lenient` also accepts calls of declared tools that a model writes in a code fence or in another family's markers
    at the beginning of its answer, if the arguments fit the schema; `strict` leaves such text in the answer."""
    constrain_tools: bool = True
    """Restrict calls to the declared tools and their schemas by a grammar."""
    sampling: Annotated[dict[str, object], BeforeValidator(read_object), Option("sampling_defaults")] = {}
    """Sampling parameters for requests that do not set them, as JSON: {"temperature": 0.6, "top_p": 0.95}. An agent's
    own take precedence over them, and they take precedence over the model's generation_config."""

    @field_validator("sampling")
    @classmethod
    def _check_sampling(cls, value: dict[str, object]) -> dict[str, object]:
        if unknown := sorted(set(value) - set(PARAMETERS)):
            raise ValueError(f"Unknown sampling parameter {unknown[0]!r}. Use one of {', '.join(PARAMETERS)}")
        try:
            msgspec.convert(value, SamplingParams).validate()
        except (msgspec.ValidationError, OptionError) as error:
            raise ValueError(str(error)) from None
        return value
