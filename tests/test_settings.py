"""Settings from the environment, and what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from agent_server import ToolLimits, assemble
from agent_server.engines.replicas import ReplicaSettings
from agent_server.engines.upstream import UpstreamSettings
from agent_server.generation.config import EngineConfig
from agent_server.prompting.output import OutputSettings
from agent_server.runs import LogLimits, RunLimits
from agent_server.runs.sharing.limits import SharingLimits
from agent_server.settings import Settings
from tests.settings_table import document, option, sections


def test_lists_come_with_commas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_SERVER_API_KEYS", "alice:one, two")
    monkeypatch.setenv("AGENT_SERVER_CORS_ORIGINS", "http://a.example")
    found = Settings(_env_file=None)
    assert [key.get_secret_value() for key in found.api_keys] == ["alice:one", "two"]
    assert found.cors_origins == ("http://a.example",)
    assert "alice" not in repr(found)


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_SERVER_PORT", "9000")
    assert Settings(_env_file=None).port == 9000
    assert Settings(_env_file=None, port=9001).port == 9001


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000}, {"max_body": 0}, {"grace": -1}, {"log_level": "loud"}, {"api_keys": ["acme:"]},
        {"api_keys": ["one", " "]}, {"operator_keys": [""]},
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        Settings(_env_file=None, **wrong)


def test_the_page_of_settings_has_all_of_them_with_a_meaning():
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == document(), "run: python -m tests.settings_table > docs/settings.md"
    assert sorted(name for names in sections().values() for name in names) == sorted(Settings.model_fields)
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    assert (option("api_keys"), option("store_url"), option("max_runs")) == ("`--api-key`", "`--store`", "")


def test_a_room_that_is_used_alone_has_the_defaults_that_the_server_has():
    given = Settings(_env_file=None)
    assert assemble.upstream_settings(given) == UpstreamSettings()
    assert assemble.replica_settings(given) == ReplicaSettings()
    assert assemble.output_settings(given) == OutputSettings()
    assert assemble.run_limits(given) == RunLimits()
    assert assemble.tool_limits(given) == ToolLimits()
    assert LogLimits(bytes=given.log_bytes) == LogLimits()
    alone = EngineConfig(model="m")
    for name in ("device", "dtype", "kv_cache_dtype", "adapter", "max_batch", "max_queued", "step_tokens"):
        assert getattr(given, name) == getattr(alone, name)
    for name in ("kv_cache_bytes", "max_context", "cuda_graphs"):
        assert getattr(given, name) == getattr(alone, name)
    sharing = SharingLimits()
    shared = (given.gateway_lease, given.run_time_limit, given.replay_seconds, given.log_bytes)
    assert shared == (sharing.lease, sharing.run, sharing.replay, sharing.bytes)


FIXED = {
    "ReplicaSettings": {"longest_cooldown", "prefixes"},
    "RunLimits": {"tenants", "replay_bytes", "replay_runs"},
}
"""What no setting changes."""


def changed(name: str) -> object:
    """Another value than a setting's default, of the same kind."""
    value = Settings.model_fields[name].default
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return {"delivery": "adaptive", "boundaries": "strict", "undeclared_tools": "drop", "failed_calls": "error"}[name]


def test_every_setting_reaches_the_room_that_it_is_for():
    numbers = [name for name, field in Settings.model_fields.items() if isinstance(field.default, bool | int | float)]
    words = ["delivery", "boundaries", "undeclared_tools", "failed_calls"]
    given = Settings(_env_file=None, **{name: changed(name) for name in [*numbers, *words]})
    for made in (
        assemble.upstream_settings(given),
        assemble.replica_settings(given),
        assemble.output_settings(given),
        assemble.run_limits(given),
        assemble.tool_limits(given),
    ):
        alone, kind = type(made)(), type(made).__name__
        same = {name for name in made.__struct_fields__ if getattr(made, name) == getattr(alone, name)}
        assert same == FIXED.get(kind, set()), kind
