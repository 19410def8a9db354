"""All settings of an operator, from the command line, the environment (`AGENT_SERVER_*`) or a `.env` file.

Durations are in seconds, sizes in bytes. The defaults suit one person on one machine; docs/operating.md lists those to
check before other people connect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class Address(NamedTuple):
    """Where a server listens: a TCP address, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""


def read_address(text: str) -> Address:
    """`host:port`, `[::1]:8000` or `unix:/path`. Raises ValueError with a sentence."""
    if text.startswith("unix:"):
        if path := text.removeprefix("unix:"):
            return Address(path=path)
    else:
        host, colon, port = text.rpartition(":")
        if colon and host and port.isdecimal() and int(port) <= 65535 and (":" not in host or host.startswith("[")):
            return Address(host.strip("[]"), int(port))
    raise ValueError(f"{text!r} is not an address: host:port, [::1]:8000 or unix:/path is")


class Settings(BaseSettings):
    """One server's settings; immutable once the server is built."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_SERVER_", env_file=".env", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    # what is served
    model: str = ""
    """Folder or hub name of the model; empty for the bundled demonstration model."""
    served_name: str = ""
    """The name that clients see; empty for the folder's name or the last part of the hub name."""
    engine: Annotated[tuple[str, ...], NoDecode] = ()
    """Empty for the embedded engine, "scripted" for scripted answers, "vllm" for vLLM in this process, else URLs of
    upstream engines, with or without a dialect in front (`http://host:8000`, `vllm+http://host:8000`)."""
    engine_process: bool = True
    """Run the embedded engine in its own process, which is restarted if it fails; false runs it in a thread, for
    debugging."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` or `mps`; auto takes CUDA if there is one, else Apple's GPU, else the CPU. With several
    (`cuda:0,cuda:1`) each gets a replica of the model."""
    dtype: str = "auto"
    """`bfloat16`, `float16` or `float32`; auto is bfloat16 on CUDA if the GPU supports it, and on a CPU that
    multiplies it for checkpoints of 16 bits that are not tiny; float32 on other CPUs."""
    quantize: Literal["", "int8", "int4"] = ""
    """Quantise the weights when the model is loaded, to `int8` or `int4`; empty for the checkpoint's own."""
    trust_remote_code: bool = False
    """Run Python code that comes with a checkpoint, for architectures that transformers does not have."""
    kv_cache_dtype: str = "auto"
    """The type of cached keys and values on a CPU; auto is bfloat16 for bfloat16 checkpoints if the CPU is fast with
    it."""
    adapter: str = ""
    """Folder of a LoRA adapter."""
    agent: Annotated[tuple[str, ...], NoDecode] = ()
    """The agents to serve, each as `path/to/file.py:attribute`, `package.module:attribute` or a URL."""
    mcp: Annotated[tuple[str, ...], NoDecode] = ()
    """Files of MCP servers, `{"mcpServers": {...}}` as other hosts write it; every agent is given their tools."""

    # where
    host: str = "127.0.0.1"
    """Address to listen on; with the default only programs on this machine can connect."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    listen: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses to listen on in place of host and port: `host:port`, `[::1]:8000` or `unix:/path`. A Unix socket can
    be opened by its owner and group."""
    root_path: str = ""
    """The path under which a reverse proxy that removes it serves this server, such as `/ai`."""
    data_dir: Path = Path.home() / ".local" / "share" / "agent-server"
    """Folder of the default database."""
    store_url: str = ""
    """SQLAlchemy URL of the database; empty for SQLite in `data_dir`, "memory" to keep nothing after the server
    stops."""

    # several gateways over one database
    redis_url: str = ""
    """`redis://`, `rediss://` or `unix://`; all gateways with the same Redis can read, control and list each other's
    runs."""
    redis_prefix: str = "agent-server"
    """Prefix of the keys in Redis; gateways with the same prefix share their runs."""
    gateway_lease: float = Field(6, ge=0.5)
    """Seconds without a sign of life after which a gateway counts as dead and the others end its runs with
    RUN_ERROR."""

    # how output is read
    chat_template: Path | None = None
    """File with a chat template that is used instead of the model's."""
    format: str = ""
    """Name of the output format, used instead of the analysed one; an unknown name is refused with a list of all
    names."""
    reasoning_parser: str = ""
    """Name of the format whose reasoning is used; calls stay as they were found."""
    tool_call_parser: str = ""
    """Name of the format whose tool calls are used; reasoning stays as it was found."""
    delivery: Literal["immediate", "adaptive"] = "immediate"
    """`adaptive` sends reasoning by sentences and arguments at JSON boundaries."""
    boundaries: Literal["lenient", "strict"] | None = None
    """`strict` accepts a call only right behind the reasoning or another call, `lenient` accepts text between them;
    none for what the model's format says."""
    undeclared_tools: Literal["keep", "drop", "content"] | None = None
    """What to do with a call of a tool that the request does not declare; none for what the model's format says."""
    failed_calls: Literal["content", "text", "drop", "error"] | None = None
    """What to do with text behind a call's marker that is not a call; "error" ends the run with
    tool_call_parse_error."""
    constrain_tools: bool = True
    """Restrict calls to the declared tools and their schemas by a grammar."""
    reasoning_content: bool = True
    """Also send reasoning under `reasoning_content` on the OpenAI wire."""

    # who may ask
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """`key` or `tenant:key`; without any, everyone who can connect may use the server."""
    keys_file: Path | None = None
    """File with hashed, named and expiring keys, as `agent-server keys new` writes it; a change is taken over at
    once."""
    oidc_issuer: str = ""
    """URL of an OpenID Connect issuer whose tokens (JWT) are taken as keys."""
    oidc_audience: str = ""
    """What a token's `aud` must have."""
    oidc_keys_url: str = ""
    """URL of the issuer's keys (JWKS); empty to ask the issuer for it (`/.well-known/openid-configuration`)."""
    oidc_leeway: float = Field(30, ge=0)
    """Seconds by which the issuer's clock may differ."""
    oidc_tenant_claim: str = "tenant"
    """The claim that names a token's tenant; `sub` makes every user a tenant."""
    oidc_scope_claim: str = "scope"
    """The claim with a token's scopes (`use`, `operate`, `metrics`): a list, or a string with spaces between them."""
    oidc_scope_prefix: str = ""
    """What stands before a scope of this server in that claim, such as `agent-server:`."""
    oidc_limits_claim: str = "limits"
    """The claim with a token's limits, an object with the names of those in the keys file."""
    operator_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Keys for the paths under /operator/; without any, these paths are closed."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Origins whose web pages may send requests, over HTTP and WebSockets; pages of other origins are refused."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Names in the Host header that are served besides localhost, addresses and the machine's own name, such as the
    public name of a reverse proxy; `*.example.com` and `*` are understood. With API keys and none named: all."""
    cors_credentials: bool = False
    """Let pages of `cors_origins` send cookies and HTTP authentication (`credentials: "include"`)."""
    encryption_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """base64 of 32 bytes each; the first one encrypts hidden reasoning, all of them decrypt it, so that keys can be
    rotated."""

    # limits
    max_body: int = Field(4 * 2**20, gt=0)
    """Bytes of a request body; a longer one is refused while it is being read."""
    max_connections: int = Field(8192, gt=0)
    """Connections at once; when all are taken, only addresses with less than an equal share get another one."""
    max_header_bytes: int = Field(32 * 2**10, ge=1024)
    """Bytes of a request's URL and headers together; more is refused with 431 while they are being read."""
    header_timeout: float = Field(10, gt=0)
    """Seconds from a connection to the end of its first request's headers, and from the first byte of a later one."""
    body_timeout: float = Field(60, gt=0)
    """Seconds from the end of the headers to the end of the body."""
    max_runs: int = Field(256, gt=0)
    """Runs at once; further ones are refused with 503 and `Retry-After`."""
    max_runs_per_tenant: int = Field(0, ge=0)
    """Runs of one tenant at once; 0 for a fair share: all if there is one tenant, else three times what is free, so
    that one tenant alone never gets more than three quarters."""
    tenant_requests_per_minute: int = Field(0, ge=0)
    """Requests of one tenant in a minute, besides those of its keys; 0 sets no limit. Shared through `redis_url`."""
    tenant_tokens_per_minute: int = Field(0, ge=0)
    """Tokens of one tenant's prompts and answers in a minute; when they are used up, the next run is refused."""
    max_queued_per_thread: int = Field(4, ge=0)
    """Runs that may wait in one thread, in which one run is executed at a time."""
    run_time_limit: float = Field(3600, gt=0)
    """Seconds after which a run is ended with RUN_ERROR."""
    tool_time_limit: float = Field(60, gt=0)
    """Seconds for one call of a tool that has no time limit of its own."""
    tool_result_limit: int = Field(256 * 2**10, gt=0)
    """Characters of a tool's result that are given to the model."""
    render_time_limit: float = Field(5, gt=0)
    """Seconds for rendering one prompt."""
    log_bytes: int = Field(8 * 2**20, gt=0)
    """Bytes of one run's events that are kept for late or slow readers."""
    replay_seconds: float = Field(600, ge=0)
    """Seconds for which a run can be read again after its end."""
    grace: float = Field(10, ge=0)
    """Seconds after which a run is cancelled when its last AG-UI reader has left; OpenAI-style wires cancel at once."""
    keep_alive: float = Field(15, gt=0)
    """Seconds of silence after which a comment is sent, so that proxies keep the connection open."""
    drain: float = Field(30, ge=0)
    """Seconds that running runs get to end after SIGTERM; new ones are refused at once."""

    # pictures
    media_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts (`name` or `name:port`) from which pictures are fetched, over https and at public addresses; without any,
    pictures come as data alone."""
    media_bytes: int = Field(16 * 2**20, gt=0)
    """Bytes of one picture's file."""
    media_pixels: int = Field(50_000_000, gt=0)
    """Pixels of all pictures of a request together."""

    # generation core
    max_batch: int = Field(64, gt=0)
    """Sequences that are generated at the same time."""
    max_queued: int = Field(512, ge=0)
    """Generations that may wait for a place; more are refused as overloaded."""
    step_tokens: int = Field(0, ge=0)
    """Tokens of prompts and answers in one step of the engine; 0 is 4096 on CUDA and 512 elsewhere."""
    kv_cache_bytes: int = Field(0, ge=0)
    """Bytes for cached keys and values; 0 to choose by the device's free memory."""
    max_context: int = Field(0, ge=0)
    """Tokens of prompt and answer together; 0 is the model's own limit."""
    step_time_limit: float = Field(120, gt=0)
    """Seconds without a report from the engine's process after which it is killed and restarted; it is not ready after
    half of them."""
    cuda_graphs: bool = True
    """Capture decoding in CUDA graphs."""

    # upstream engines
    engine_key: SecretStr = SecretStr("")
    """API key for upstreams and workers; a key in a URL (`http://:KEY@host:8000`) is used instead."""
    engine_connect: float = Field(5, gt=0)
    """Seconds to connect to an upstream."""
    engine_idle: float = Field(30, gt=0)
    """Seconds of silence between two frames of a stream after which the upstream counts as lost."""
    engine_first: float = Field(300, gt=0)
    """Seconds to wait for the first token while the upstream passes health checks."""
    engine_start: float = Field(1800, gt=0)
    """Seconds that an upstream may take to load its model."""
    engine_health: float = Field(5, gt=0)
    """Seconds between two health checks of an upstream."""
    engine_check_tokenizer: bool = True
    """Check that an upstream splits text as our tokenizer does; turn it off for GGUF files that only differ in that."""
    engine_in_flight: int = Field(1024, gt=0)
    """Generations at once on one engine; further ones wait, see `engine_queued`."""
    engine_queued: int = Field(1024, ge=0)
    """Generations that may wait while every engine is full; more are refused as overloaded."""
    engine_wait: float = Field(10, ge=0)
    """Seconds that a generation waits while no engine is available."""
    engine_check: float = Field(1, gt=0)
    """Seconds between two checks of the engines."""
    engine_resume: bool = True
    """Continue a generation on another engine if its engine is lost after the first token."""
    engine_attempts: int = Field(4, gt=0)
    """The most attempts of one generation."""
    engine_failures: int = Field(3, gt=0)
    """Failures in a row after which an engine gets no generations for `engine_cooldown` seconds."""
    engine_cooldown: float = Field(1, gt=0)
    """Seconds without generations after failures in a row; doubled each time, up to 30."""
    engine_affinity: float = Field(4, ge=0)
    """How many more generations in flight an engine may have and still be chosen because it has the whole prompt
    cached."""

    vllm: dict[str, Any] = {}
    """Engine arguments of vLLM in this process (`--engine vllm`), as JSON: {"tensor_parallel_size": 2}."""

    # watching it
    metrics: bool = True
    """Serve Prometheus text at /metrics."""
    demo: bool = True
    """Serve the demonstration page at / and its agents."""
    log_format: Literal["text", "json"] = "text"
    """`json` logs an object a line with the ids of the request, trace, tenant, key, run and thread."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are logged; bodies, headers and prompts are logged at no level."""

    @field_validator(
        "engine", "agent", "mcp", "api_keys", "operator_keys", "cors_origins", "allowed_hosts", "encryption_keys",
        "listen", "media_hosts",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Split lists from the environment, whose items are separated by commas."""
        return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value

    @field_validator("listen")
    @classmethod
    def _addresses(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        for address in listen:
            read_address(address)
        return listen

    @field_validator("root_path")
    @classmethod
    def _prefix(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise ValueError("The root path begins with a slash")
        return path.rstrip("/")

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where to listen."""
        return tuple(map(read_address, self.listen)) or (Address(self.host, self.port),)

    @field_validator("api_keys", "operator_keys")
    @classmethod
    def _not_empty(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """Refuse empty keys, which come from variables that are not set and would admit everyone."""
        if any(not key.get_secret_value().rpartition(":")[2].strip() for key in keys):
            raise ValueError("A key may not be empty")
        return keys

    @property
    def database_url(self) -> str:
        """The store's URL, with the default filled in."""
        if self.store_url == "memory":
            return "sqlite+aiosqlite:///:memory:"
        return self.store_url or f"sqlite+aiosqlite:///{self.data_dir / 'threads.db'}"
