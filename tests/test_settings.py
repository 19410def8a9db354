"""Settings from the environment, and what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

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
