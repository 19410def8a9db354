"""Everything an operator can set, from the command line, the environment (`AGENT_SERVER_*`) or a `.env` file.

Durations are in seconds, sizes in bytes. The defaults suit one person on one machine; docs/operating.md says which
ones to look at before other people connect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class Settings(BaseSettings):
    """One server's settings; immutable once the server is built."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_SERVER_", env_file=".env", extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    # what is served
    model: str = ""
    """Folder or hub name; empty is the bundled demonstration model."""
    served_name: str = ""
    """The name that clients see; empty is the folder's or the last part of the hub name."""
    engine: Annotated[tuple[str, ...], NoDecode] = ()
    """Empty is the embedded engine; "scripted" replays; else URLs of upstream engines, with or without a dialect in
    front (`http://host:8000`, `vllm+http://host:8000`); "vllm" is vLLM in this process."""
    engine_process: bool = True
    """The embedded engine in a process of its own, which is watched; off is a thread, for debugging."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`; auto takes CUDA before Apple's GPU before the CPU. Several (`cuda:0,cuda:1`) get
    a replica of the model each."""
    dtype: str = "auto"
    """`bfloat16`, `float16`, `float32`; auto is bfloat16 on CUDA where the chip has it, float32 on a CPU."""
    kv_cache_dtype: str = "auto"
    """The same for keys and values, on a CPU; auto keeps a bfloat16 checkpoint's in bfloat16 where that is fast."""
    adapter: str = ""
    """Folder of a LoRA adapter."""
    agent: Annotated[tuple[str, ...], NoDecode] = ()
    """`path/to/file.py:attribute` or `package.module:attribute`, one for each agent."""

    # where
    host: str = "127.0.0.1"
    """Address to listen on; nobody else can connect until you say so."""
    port: int = Field(8000, ge=0, le=65535)
    """0 takes a free one."""
    data_dir: Path = Path.home() / ".local" / "share" / "agent-server"
    """Where the default database is."""
    store_url: str = ""
    """SQLAlchemy URL; empty is SQLite in `data_dir`, "memory" keeps nothing."""

    # several gateways over one database
    redis_url: str = ""
    """`redis://`, `rediss://` or `unix://`; runs are then read, steered and listed from every gateway with the same."""
    redis_prefix: str = "agent-server"
    """Gateways with the same share their runs."""
    gateway_lease: float = Field(6, ge=0.5)
    """A gateway that has not been heard of for so long is dead: the others end its runs with RUN_ERROR."""

    # how output is read
    chat_template: Path | None = None
    """File that replaces the model's chat template."""
    format: str = ""
    """Output format by name instead of by analysis; an unknown one is answered with all that there are."""
    reasoning_parser: str = ""
    """Reasoning format by name, the rest as it is."""
    tool_call_parser: str = ""
    """Tool call format by name, the rest as it is."""
    delivery: Literal["immediate", "adaptive"] = "immediate"
    """`adaptive` sends reasoning by sentences and arguments at JSON boundaries."""
    boundaries: Literal["lenient", "strict"] | None = None
    """`strict` follows the DeepSeek rules on text around calls, `lenient` lets text come anywhere; none is as the
    format says."""
    undeclared_tools: Literal["keep", "drop", "content"] | None = None
    """A call of a tool that nobody declared; none is as the model's format says."""
    failed_calls: Literal["content", "text", "drop", "error"] | None = None
    """Text that is no call after a call's marker; "error" ends the run with tool_call_parse_error."""
    constrain_tools: bool = True
    """A grammar keeps calls to the declared tools and their schemas."""
    reasoning_content: bool = True
    """Also send reasoning under `reasoning_content` on the OpenAI wire."""

    # who may ask
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """`key` or `tenant:key`; none means that everyone who can connect may ask."""
    operator_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Keys for the paths under /operator/; without any, nobody may use those."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    """Origins whose pages may ask from a browser, over HTTP and WebSockets; pages elsewhere may not."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Names in the Host header that are served besides localhost, addresses and the machine's own name, such as the
    public name of a reverse proxy; `*.example.com` and `*` are understood. With API keys and none named: all."""
    cors_credentials: bool = False
    """Pages on those origins may send cookies and HTTP authentication of their own (`credentials: "include"`)."""
    encryption_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """base64 of 32 bytes each; the first seals hidden reasoning, all of them open it (rotation)."""

    # limits
    max_body: int = Field(4 * 2**20, gt=0)
    """Bytes; a longer body is refused while it is being read."""
    max_connections: int = Field(8192, gt=0)
    """At once; beyond it addresses with more than an equal share get no other one."""
    max_header_bytes: int = Field(32 * 2**10, ge=1024)
    """Of a request's URL and headers together; more is refused with 431 while they are being read."""
    header_timeout: float = Field(10, gt=0)
    """Seconds from a connection to the end of its first request's headers, and from the first byte of a later one."""
    body_timeout: float = Field(60, gt=0)
    """Seconds from the end of the headers to the end of the body."""
    max_runs: int = Field(256, gt=0)
    """At once; beyond it a run is refused with 503 and `Retry-After`."""
    max_runs_per_tenant: int = Field(0, ge=0)
    """The same for each tenant; 0 is a fair share: everything where there is one tenant, else three times what is free,
    so that one tenant alone never gets more than three quarters."""
    max_queued_per_thread: int = Field(4, ge=0)
    """Runs that may wait for a thread's turn; runs on one thread never interleave."""
    run_time_limit: float = Field(3600, gt=0)
    """Seconds, after which a run ends with RUN_ERROR."""
    tool_time_limit: float = Field(60, gt=0)
    """Seconds for one call of a tool that sets none itself."""
    tool_result_limit: int = Field(256 * 2**10, gt=0)
    """Characters of a tool's result that the model is told."""
    render_time_limit: float = Field(5, gt=0)
    """Seconds for rendering one prompt."""
    log_bytes: int = Field(8 * 2**20, gt=0)
    """Of one run's events that are kept for readers who come late or are slow."""
    replay_seconds: float = Field(600, ge=0)
    """How long a run that ended can be read again."""
    grace: float = Field(10, ge=0)
    """A run whose last AG-UI reader is gone lives this long; OpenAI-style wires cancel at once."""
    keep_alive: float = Field(15, gt=0)
    """Seconds of silence until a comment is sent, so that proxies keep the line."""
    drain: float = Field(30, ge=0)
    """Seconds that running runs get to end on SIGTERM; new ones are refused at once."""

    # generation core
    max_batch: int = Field(64, gt=0)
    """Sequences that are generated together."""
    max_queued: int = Field(512, ge=0)
    """Generations that may wait for a place; more are refused as overloaded."""
    step_tokens: int = Field(0, ge=0)
    """Tokens of prompts and answers in one step of the engine; 0 is 4096 on CUDA and 512 elsewhere."""
    kv_cache_bytes: int = Field(0, ge=0)
    """0 chooses by the device's free memory."""
    max_context: int = Field(0, ge=0)
    """Tokens of prompt and answer together; 0 is the model's own limit."""
    step_time_limit: float = Field(120, gt=0)
    """Seconds without a word from the engine's process, while it generates, until it is killed and started again."""
    cuda_graphs: bool = True
    """Capture decoding in CUDA graphs."""

    # upstream engines
    engine_key: SecretStr = SecretStr("")
    """The upstream's API key; one in its URL (`http://:KEY@host:8000`) goes before it."""
    engine_connect: float = Field(5, gt=0)
    """Seconds to connect to an upstream."""
    engine_idle: float = Field(30, gt=0)
    """The longest silence between two frames of a stream; then the upstream is lost."""
    engine_first: float = Field(300, gt=0)
    """Until the first token, as long as the upstream answers questions about its health meanwhile."""
    engine_start: float = Field(1800, gt=0)
    """How long an upstream may load its model."""
    engine_health: float = Field(5, gt=0)
    """Seconds for an upstream's answer to a question about its health."""
    engine_check_tokenizer: bool = True
    """Off for an upstream that has the model's ids and yet takes text apart in its own way, as some GGUF files do."""
    engine_in_flight: int = Field(1024, gt=0)
    """Generations at once on one engine; where there are several, more of them wait."""
    engine_queued: int = Field(1024, ge=0)
    """Generations that wait while every engine has as many as it may have; more are refused as overloaded."""
    engine_wait: float = Field(10, ge=0)
    """How long a generation waits while no engine is there at all."""
    engine_check: float = Field(1, gt=0)
    """Between two looks at the engines."""
    engine_resume: bool = True
    """Continue a generation elsewhere when its engine is lost after the first token."""
    engine_attempts: int = Field(4, gt=0)
    """How often one generation is tried in all."""
    engine_failures: int = Field(3, gt=0)
    """Failures in a row until an engine is left alone for `engine_cooldown` seconds, and twice as long each time."""
    engine_cooldown: float = Field(1, gt=0)
    """Seconds; see `engine_failures`."""
    engine_affinity: float = Field(4, ge=0)
    """Generations in flight that a wholly cached prompt is worth when an engine is chosen."""

    vllm: dict[str, Any] = {}
    """Engine arguments of vLLM in this process (`--engine vllm`), as JSON: {"tensor_parallel_size": 2}."""

    # watching it
    metrics: bool = True
    """Serve Prometheus text at /metrics."""
    demo: bool = True
    """Serve the page at / and its agents."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Logs hold no bodies, headers or prompts at any level."""

    @field_validator(
        "engine", "agent", "api_keys", "operator_keys", "cors_origins", "allowed_hosts", "encryption_keys",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Lists come from the environment with commas between their items."""
        return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value

    @field_validator("api_keys", "operator_keys")
    @classmethod
    def _not_empty(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """An empty key, as of a variable that is not set, would be no lock at all."""
        if any(not key.get_secret_value().rpartition(":")[2].strip() for key in keys):
            raise ValueError("A key may not be empty")
        return keys

    @property
    def database_url(self) -> str:
        """The store's URL with the default filled in."""
        if self.store_url == "memory":
            return "sqlite+aiosqlite:///:memory:"
        return self.store_url or f"sqlite+aiosqlite:///{self.data_dir / 'threads.db'}"
