"""All settings of an operator, from the command line, the environment (`AGENT_SERVER_*`) or a `.env` file.

Durations are in seconds, sizes in bytes. The defaults suit one person on one machine; docs/operating.md lists those to
check before other people connect. Each section is passed unchanged to the part of the server that it configures.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_server.settings.access_settings import AccessSettings, IssuerSettings, TenantLimits
from agent_server.settings.engine_settings import (
    LONGER,
    ComputeSettings,
    MediaLimits,
    ProcessSettings,
    ReplicaSettings,
    UpstreamSettings,
)
from agent_server.settings.http_settings import (
    BrowserSettings,
    ConnectionLimits,
    HttpSettings,
    ListenAddress,
    ListenSettings,
    WatchSettings,
    read_address,
)
from agent_server.settings.run_limits import (
    LogLimits,
    RunLimits,
    SharingLimits,
    StoreSettings,
    ToolLimits,
    WebhookSettings,
)
from agent_server.settings.section import ENV_FILE, faults, from_environment, nested, places
from agent_server.settings.served_settings import (
    DownloadSettings,
    OutputSettings,
    PoolSettings,
    PromptSettings,
    ServedSettings,
)

__all__ = [
    "AccessSettings",
    "BrowserSettings",
    "ComputeSettings",
    "ConnectionLimits",
    "DownloadSettings",
    "HttpSettings",
    "IssuerSettings",
    "ListenAddress",
    "ListenSettings",
    "LogLimits",
    "MediaLimits",
    "OutputSettings",
    "PoolSettings",
    "ProcessSettings",
    "PromptSettings",
    "ReplicaSettings",
    "RunLimits",
    "ServedSettings",
    "Settings",
    "SharingLimits",
    "StoreSettings",
    "TenantLimits",
    "ToolLimits",
    "UpstreamSettings",
    "WatchSettings",
    "WebhookSettings", "fault_text",
    "read_address",
]  # fmt: skip

ENV_PREFIX = "AGENT_SERVER_"


class Settings(BaseModel):
    """One server's settings; immutable once the server is built.

    options: by their flat names (`port=8000, redis_url="redis://..."`); they take precedence over the environment.
    _env_file: a file with variables, or None. Raises ValidationError, and TypeError for an unknown option.
    """

    model_config = ConfigDict(frozen=True)

    served: ServedSettings = ServedSettings()
    pool: PoolSettings = PoolSettings()
    downloads: DownloadSettings = DownloadSettings()
    listening: ListenSettings = ListenSettings()
    store: StoreSettings = StoreSettings()
    sharing: SharingLimits = SharingLimits()
    prompts: PromptSettings = PromptSettings()
    output: OutputSettings = OutputSettings()
    access: AccessSettings = AccessSettings()
    issuer: IssuerSettings = IssuerSettings()
    browsers: BrowserSettings = BrowserSettings()
    http: HttpSettings = HttpSettings()
    connections: ConnectionLimits = ConnectionLimits()
    tenants: TenantLimits = TenantLimits()
    runs: RunLimits = RunLimits()
    tools: ToolLimits = ToolLimits()
    media: MediaLimits = MediaLimits()
    webhooks: WebhookSettings = WebhookSettings()
    compute: ComputeSettings = ComputeSettings()
    process: ProcessSettings = ProcessSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    replicas: ReplicaSettings = ReplicaSettings()
    watching: WatchSettings = WatchSettings()

    def __init__(self, *, _env_file: Path | str | None = ENV_FILE, **options: object) -> None:
        names = {place.option for place in places(Settings)}
        if unknown := options.keys() - names:
            raise TypeError(f"Unknown options: {', '.join(sorted(unknown))}. docs/settings.md lists all options.")
        flat = {**from_environment(names, ENV_PREFIX, _env_file), **options}
        super().__init__(**nested(Settings, flat))

    @property
    def replica_settings(self) -> ReplicaSettings:
        """The settings of replicas, with limits on silence that follow those of their engines."""
        longer = {"idle": self.upstream.idle * LONGER, "first_token": self.upstream.first * LONGER}
        return self.replicas.model_copy(update=longer)


def fault_text(error: ValidationError) -> str:
    """Describe invalid options in one line, without their values, some of which are secret."""
    return "; ".join(faults(Settings, error.errors(include_input=False))) + "."
