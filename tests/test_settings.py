"""Settings from the environment, and what is refused."""

import pytest
from pydantic import ValidationError

from agent_server.settings import Settings


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
