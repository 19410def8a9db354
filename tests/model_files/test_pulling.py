"""Models from a hub: which files are fetched, what is kept of a download that broke off, and what is refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from agent_server.cli.main import app
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files, local_source
from agent_server.model_files.catalogue import CATALOGUE, Machine, machine, offers
from agent_server.model_files.checkpoint_files import models_home
from agent_server.model_files.pulling import PullError, discard, fetch, local_models, look_up, search
from tests.model_files.hub import Hub

NAME = "tiny/demo"
GGUFS = "tiny/demo-gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    ggufs = tmp_path / "ggufs"
    ggufs.mkdir()
    for kind in ("Q4_K_M", "Q8_0"):
        (ggufs / f"demo-{kind}.gguf").write_bytes(b"GGUF" + kind.encode() * 2000)
    made = Hub({NAME: BUNDLED, GGUFS: ggufs})
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    yield made
    made.close()


def ignore(done: int) -> None:
    pass


def test_a_model_is_fetched_whole_and_then_served_by_its_name(hub: Hub):
    model = look_up(NAME)
    assert model.licence == "apache-2.0"
    told: list[int] = []
    source = fetch(model, 0, told.append)
    assert told == sorted(told) and told[-1] == model.bytes
    assert load_model_files(source).tokenizer.get_vocab_size() == load_model_files(BUNDLED).tokenizer.get_vocab_size()
    assert (Path(source) / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()
    assert not (Path(source) / "README.md").exists()
    assert local_source(NAME) == source
    assert [(each.name, each.source) for each in local_models()] == [(NAME, source)]
    asked = len(hub.asked)
    fetch(look_up(NAME), 0, ignore)
    assert len(hub.asked) == asked, "nothing is fetched twice"
    discard(NAME)
    assert local_source(NAME) == NAME and not list(local_models())


def test_what_came_before_a_cut_is_kept(hub: Hub):
    hub.cut_after = 3_000_000
    with pytest.raises(PullError, match="broke off"):
        fetch(look_up(NAME), 0, ignore)
    assert local_source(NAME) == NAME
    source = fetch(look_up(NAME), 0, ignore)
    ranges = [asked for name, asked in hub.asked if name == "model.safetensors"]
    assert ranges[0] is None and int(ranges[1].removeprefix("bytes=").rstrip("-")) >= 2_000_000
    assert (Path(source) / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_with_another_checksum_is_refused_and_removed(hub: Hub, file: str):
    hub.spoiled.add(file)
    with pytest.raises(PullError, match=f"{file} is not what the hub says it is"):
        fetch(look_up(NAME), 0, ignore)
    assert local_source(NAME) == NAME
    hub.spoiled.clear()
    fetch(look_up(NAME), 0, ignore)


def test_one_gguf_file_is_chosen_or_named(hub: Hub):
    assert look_up(GGUFS).source.endswith("demo-Q8_0.gguf")
    named = look_up(f"{GGUFS}:demo-Q4_K_M.gguf")
    source = fetch(named, 0, ignore)
    assert local_source(f"{GGUFS}:demo-Q4_K_M.gguf") == source and Path(source).is_file()
    assert local_source(f"{GGUFS}:demo-Q8_0.gguf") == f"{GGUFS}:demo-Q8_0.gguf"
    with pytest.raises(PullError, match=r"has no file other\.gguf; it has demo-Q4_K_M\.gguf, demo-Q8_0\.gguf"):
        look_up(f"{GGUFS}:other.gguf")


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "../etc", "a/../b", "/etc/passwd"])
def test_what_is_no_name_is_refused_before_anything_is_asked(hub: Hub, name: str):
    with pytest.raises(PullError, match="is no name on the hub"):
        look_up(name)
    assert local_source(name) == name


def test_an_unknown_model_and_an_unreachable_hub_say_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PullError, match="The hub has no model tiny/other, or it is private: set HF_TOKEN"):
        look_up("tiny/other")
    hub.gated.add(NAME)
    with pytest.raises(PullError, match="asks for its licence to be accepted"):
        fetch(look_up(NAME), 0, ignore)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullError, match=r"The hub http://127\.0\.0\.1:9 does not answer .* Set HF_ENDPOINT"):
        look_up(NAME)


def test_the_disk_is_bounded(hub: Hub):
    with pytest.raises(PullError, match=r"0\.0 GB are needed in .* and 0\.0 GB are left"):
        fetch(look_up(NAME), 1_000_000, ignore)
    assert all(asked[0] != "model.safetensors" for asked in hub.asked)


def test_a_search_finds_models_by_their_names(hub: Hub):
    assert [(each.name, each.licence) for each in search("GGUF")] == [(GGUFS, "apache-2.0")]


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        asked = []

        def hang_up():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the listener is closed
                    return
                asked.append(connection)  # before the client learns of it
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(PullError, match="does not answer"):
            search("qwen")
        assert len(asked) == 1


def test_the_list_has_first_what_fits():
    found = offers(Machine("CPU", 8 << 30, 10e9))
    fits = [offer.fits for offer in found]
    assert fits == sorted(fits, reverse=True) and True in fits and False in fits
    speeds = [offer.speed or 0 for offer in found]
    assert speeds[0] >= 4 and found[0].name.startswith("Qwen/Qwen3-0.6B") and not found[-1].fits
    assert len({each.name for each in CATALOGUE}) == len(CATALOGUE)
    assert machine("cpu").memory > 0


def test_the_commands(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    run = CliRunner().invoke
    assert "No model is here yet." in run(app, ["models"]).stdout
    pulled = run(app, ["pull", NAME])
    assert pulled.exit_code == 0 and f"Serve it: agent-server serve {NAME}" in pulled.stdout
    listed = run(app, ["models"]).stdout
    assert NAME in listed and "SmolLM2-135M" in listed and "agent-server pull NAME" in listed
    assert f"{NAME} was removed." in run(app, ["models", "--remove", NAME]).stdout
    assert run(app, ["models", "--remove", NAME]).exit_code == 2
    assert run(app, ["pull", "tiny/other"]).exit_code == 2


def test_the_home_follows_the_hub_s(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HOME", "/data/hub")
    assert models_home() == Path("/data/hub/agent-server")
