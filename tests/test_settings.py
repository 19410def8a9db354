"""Settings from the environment, and what is refused."""

from functools import reduce
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from pydantic import ValidationError

from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.settings import ReplicaSettings, Settings, fault_text
from agent_server.settings.section import places
from tests.settings_table import command_line, document, options


def test_lists_come_with_commas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_SERVER_API_KEYS", "alice:one, two")
    monkeypatch.setenv("AGENT_SERVER_CORS_ORIGINS", "http://a.example")
    found = Settings(_env_file=None)
    assert [key.get_secret_value() for key in found.access.api_keys] == ["alice:one", "two"]
    assert found.browsers.cors_origins == ("http://a.example",)
    assert "alice" not in repr(found)


@pytest.mark.parametrize("text", ['["alice:one", "two"]', "alice:one,two,", ' [ "alice:one" , "two" ] '])
def test_lists_come_as_json_too(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("AGENT_SERVER_API_KEYS", text)
    monkeypatch.setenv("AGENT_SERVER_ALLOWED_HOSTS", "[::1],[fe80::1]")
    found = Settings(_env_file=None)
    assert [key.get_secret_value() for key in found.access.api_keys] == ["alice:one", "two"]
    assert found.browsers.allowed_hosts == ("[::1]", "[fe80::1]")


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENT_SERVER_PORT", "9000")
    assert Settings(_env_file=None).listening.port == 9000
    assert Settings(_env_file=None, port=9001).listening.port == 9001


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000}, {"max_body": 0}, {"grace": -1}, {"log_level": "loud"}, {"api_keys": ["acme:"]},
        {"api_keys": ["one", " "]}, {"operator_keys": [""]}, {"api_keys": "['one', 'two']"}, {"api_keys": '["one",]'},
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        Settings(_env_file=None, **wrong)


def test_a_name_that_is_no_option_is_refused():
    with pytest.raises(TypeError, match=r"Unknown options: prot\. docs/settings\.md lists all"):
        Settings(_env_file=None, prot=8000)


def test_an_option_that_several_rooms_read_is_complained_of_once_and_by_its_own_name():
    with pytest.raises(ValidationError) as refused:
        Settings(_env_file=None, run_time_limit=0, engine_connect="soon", api_keys=[1])
    assert fault_text(refused.value) == snapshot(
        "api_keys.0: Input should be a valid string; run_time_limit: Input should be greater than 0; "
        "engine_connect: Input should be a valid number, unable to parse string as a number."
    )


def test_a_variable_is_read_as_its_field_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "variables").write_text("AGENT_SERVER_DEMO=off\nAGENT_SERVER_MAX_RUNS=3\nAGENT_SERVER_UNKNOWN=1\n")
    monkeypatch.setenv("AGENT_SERVER_MAX_RUNS", "4")
    monkeypatch.setenv("AGENT_SERVER_VLLM", '{"tensor_parallel_size": 2}')
    found = Settings(_env_file=tmp_path / "variables", media_hosts="A.Example.,b:8080")
    assert (found.watching.demo, found.runs.runs) == (False, 4)
    assert found.served.vllm == {"tensor_parallel_size": 2}
    assert found.media.hosts == ("a.example", "b:8080")
    monkeypatch.setenv("AGENT_SERVER_VLLM", "{tensor_parallel_size")
    with pytest.raises(ValidationError):
        Settings(_env_file=None)


def test_the_page_of_settings_has_all_of_them_with_a_meaning():
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == document(), "run: python -m tests.settings_table > docs/settings.md"
    assert set(options()) == {place.option for place in places(Settings)}
    named = (command_line("api_keys"), command_line("store_url"), command_line("max_runs"))
    assert named == ("`--api-key`", "`--store`", "")


def test_an_option_that_several_rooms_read_has_one_default():
    defaults: dict[str, set[object]] = {}
    for place in places(Settings):
        if not isinstance(place.field.default, dict):
            defaults.setdefault(place.option, set()).add(place.field.default)
    assert {name: found for name, found in defaults.items() if len(found) > 1} == {}


def test_a_room_that_is_used_alone_has_the_defaults_that_the_server_has():
    given = Settings(_env_file=None)
    assert given.replica_settings == ReplicaSettings()
    assert EngineConfig(model="m").model_dump().items() >= given.compute.model_dump().items()


def changed(value: object) -> object:
    """Another value than a default, of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else value


def test_every_option_arrives_wherever_it_is_read():
    numbers = {
        place.option: changed(place.field.default)
        for place in places(Settings)
        if isinstance(place.field.default, bool | int | float)
    }
    given = Settings(_env_file=None, **numbers)
    for place in places(Settings):
        if place.option in numbers:
            assert reduce(getattr, place.path, given) == numbers[place.option], place.option
    assert (given.replica_settings.idle, given.replica_settings.first_token) == (46.5, 451.5)
