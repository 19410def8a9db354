"""Settings of runs and their tools, of webhooks, of the store, and of gateways that share runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from agent_server.settings.section import FIXED, Names, Option, Secrets, Section


class LogLimits(Section):
    """How much of one run is kept for late or slow readers."""

    title: ClassVar[str] = "Limits"

    bytes: Annotated[int, Option("log_bytes")] = Field(8 * 2**20, gt=0)
    """Bytes of one run's events that are kept for late or slow readers."""
    events: Annotated[int, FIXED] = 20_000


class RunLimits(Section):
    """Limits of a run manager.

    With several tenants, a tenant's fair share is three times the number of free places, so that a tenant that takes
    all it can get leaves a quarter of them to others.
    """

    title: ClassVar[str] = "Limits"

    runs: Annotated[int, Option("max_runs")] = Field(256, gt=0)
    """Runs at once; further ones are refused with 503 and `Retry-After`."""
    runs_per_tenant: Annotated[int, Option("max_runs_per_tenant")] = Field(0, ge=0)
    """Runs of one tenant at once; 0 for a fair share: all if there is one tenant, otherwise three times the free
    places, so that one tenant never gets more than three quarters."""
    queued_per_thread: Annotated[int, Option("max_queued_per_thread")] = Field(4, ge=0)
    """Runs that may wait in one thread, which executes one run at a time."""
    run_seconds: Annotated[float, Option("run_time_limit")] = Field(3600, gt=0)
    """Seconds after which a run is ended with RUN_ERROR."""
    replay_seconds: float = Field(600, ge=0)
    """Seconds for which a run can be replayed after its end."""
    grace: float = Field(10, ge=0)
    """Seconds after which a run is cancelled once its last AG-UI reader has left; OpenAI-style wires cancel at once."""
    take_up: Annotated[bool, Option("take_up_runs")] = True
    """Save the events of runs while they stream, and resume runs whose server has ended."""
    save_every: Annotated[float, FIXED] = 0.05
    """Seconds between two writes of runs' events. A stream is behind its run by at most that time."""
    log: LogLimits = LogLimits()
    tenants: Annotated[int, FIXED] = 1
    replay_bytes: Annotated[int, FIXED] = 64 * 2**20
    """Bytes of finished runs that are kept for replay."""
    replay_runs: Annotated[int, FIXED] = 4096


class ToolLimits(Section):
    """Limits of tool calls, for tools without limits of their own."""

    title: ClassVar[str] = "Limits"

    seconds: Annotated[float, Option("tool_time_limit")] = Field(60, gt=0)
    """Seconds for one call of a tool that has no time limit of its own."""
    characters: Annotated[int, Option("tool_result_limit")] = Field(256 * 2**10, gt=0)
    """Characters of a tool's result that are passed to the model."""
    per_run: Annotated[int, Option("tool_calls_per_run")] = Field(16, ge=0)
    """Tool calls of one run at once; further ones wait. 0 sets no limit."""
    per_tool: Annotated[int, Option("tool_calls_per_tool")] = Field(0, ge=0)
    """Calls at once of each tool that has no limit of its own (`at_once`); 0 sets no limit."""
    per_tenant: Annotated[int, Option("tool_calls_per_tenant")] = Field(64, ge=0)
    """Tool calls of one tenant's runs at once; 0 sets no limit."""
    context_share: Annotated[float, Option("tool_context_share")] = Field(0.25, ge=0)
    """Share of the model's context that the declarations of an agent's tools may take; above it, the prompt declares a
    search tool with which the model finds the others. 0 always declares all."""
    early: Annotated[bool, Option("early_tool_calls")] = True
    """Start calls of tools that are safe to start early while the model is still writing the message with the calls."""


class WebhookSettings(Section):
    """Notifications to applications when runs have ended."""

    title: ClassVar[str] = "Where"
    prefix: ClassVar[str] = "webhook_"

    hosts: Names = ()
    """Hosts (`name` or `name:port`) that may be notified of a run's end, over https and at public addresses."""
    secrets: Secrets = ()
    """`whsec_` followed by 24 to 64 bytes in base64 each; webhooks are signed with all of them, so that they can be
    rotated."""

    @field_validator("hosts")
    @classmethod
    def _normalise_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.rstrip(".").lower() for host in hosts)


class StoreSettings(Section):
    """Where threads are stored, and for how long."""

    title: ClassVar[str] = "Where"

    data_dir: Path = Path.home() / ".local" / "share" / "agent-server"
    """Folder of the default database."""
    store_url: str = ""
    """SQLAlchemy URL of the database; empty for SQLite in `data_dir`, "memory" to keep nothing after the server
    stops."""

    keep_days: float = Field(0, ge=0)
    """Days after which unused threads and responses are removed; 0 keeps them."""
    tenant_keep_days: Names = ()
    """Days for individual tenants, such as `acme=30`; 0 keeps everything. `keep_days` applies to all others."""
    keep_sweep: float = Field(3600, ge=1)
    """Seconds between two searches for threads and responses to remove."""

    @field_validator("tenant_keep_days")
    @classmethod
    def _check_tenant_days(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for each in entries:
            _tenant_days(each)
        return entries

    @property
    def keep_days_of(self) -> dict[str, float]:
        """The days of individual tenants, by tenant."""
        return dict(_tenant_days(each) for each in self.tenant_keep_days)

    @property
    def database_url(self) -> str:
        """The store's URL, with the default filled in."""
        if self.store_url == "memory":
            return "sqlite://"
        return self.store_url or f"sqlite:///{self.data_dir / 'threads.db'}"


def _tenant_days(entry: str) -> tuple[str, float]:
    """Parse "acme=30" into ("acme", 30.0). Raises ValueError."""
    tenant, equals, days = entry.rpartition("=")
    try:
        count = float(days)
    except ValueError:
        count = math.nan
    if not equals or not 0 <= count < 1e6:
        raise ValueError(f"Invalid entry {entry!r}. Write tenants with their days, such as acme=30,trial=7")
    return tenant, count


class SharingLimits(Section):
    """Gateways that share their runs: the Redis between them, and their timing and bounds.

    tick: seconds that events may wait to be sent together. answer: seconds that another gateway may take to answer a
    command. run: the longest duration of a run in seconds, after which its keys expire. replay: seconds that a finished
    run is kept. bytes: of one run's events. entry, entry_events: bytes and events of one stream entry. round: bytes of
    one round trip. commands: the most commands in a gateway's stream.
    """

    title: ClassVar[str] = "Several gateways over one database"

    redis_url: str = ""
    """`redis://`, `rediss://` or `unix://`; all gateways with the same Redis can read, control and list each other's
    runs."""
    redis_prefix: str = "agent-server"
    """Prefix of the keys in Redis; gateways with the same prefix share their runs."""
    lease: Annotated[float, Option("gateway_lease")] = Field(6, ge=0.5)
    """Seconds without a renewal after which a gateway is considered dead and the others resume its runs or end them
    with RUN_ERROR."""
    run: Annotated[float, Option("run_time_limit")] = RunLimits().run_seconds
    replay: Annotated[float, Option("replay_seconds")] = RunLimits().replay_seconds
    bytes: Annotated[int, Option("log_bytes")] = LogLimits().bytes
    tick: Annotated[float, FIXED] = 0.025
    answer: Annotated[float, FIXED] = 5.0
    entry: Annotated[int, FIXED] = 32 * 2**10
    entry_events: Annotated[int, FIXED] = 256
    round: Annotated[int, FIXED] = 2**20
    commands: Annotated[int, FIXED] = 4096

    @property
    def beat(self) -> float:
        """Seconds between two renewals of the lease."""
        return self.lease / 4

    @property
    def loop_patience(self) -> float:
        """Seconds for which a gateway with a blocked event loop still renews its lease."""
        return self.lease * 5
