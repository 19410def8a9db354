"""A model's files by its name on the hub, which is not reached here: what is asked of it, and what is said without it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants

from agent_server.engines.upstream.model import generation_config
from agent_server.http.server import BUNDLED
from agent_server.model_files import HUB_FILES, load_model_files, model_folder

NAME = "somebody/some-model"


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub of these tests answers, except at the address where nothing listens."""
    head = httpx2.head

    def answer(url: str, **options: float) -> httpx2.Response:
        return head(url, **options) if "127.0.0.1" in url else httpx2.Response(200)

    monkeypatch.setattr(httpx2, "head", answer)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What huggingface_hub has fetched of a model: the patterns that it was asked for, without weights."""

    def snapshot(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert name == NAME
        for pattern in allow_patterns:
            for file in BUNDLED.glob(pattern):
                shutil.copy(file, tmp_path)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return tmp_path


def test_a_name_is_read_as_its_folder_would_be_and_no_weights_are_fetched(hub: Path):
    by_name, by_folder = load_model_files(NAME), load_model_files(BUNDLED)
    assert by_name.templates == by_folder.templates and by_name.templates
    assert by_name.stop_token_ids == by_folder.stop_token_ids
    assert by_name.special_tokens == by_folder.special_tokens
    assert by_name.context_length == by_folder.context_length
    assert by_name.tokenizer.to_str() == by_folder.tokenizer.to_str()
    assert generation_config(NAME) == generation_config(str(BUNDLED))
    assert not list(hub.glob("*.safetensors"))


def test_everything_that_a_folder_is_read_for_is_fetched():
    """A file that is read and not fetched would be seen by folder and not by name."""
    source = Path(importlib.util.find_spec("agent_server.model_files.checkpoint_files").origin).read_text("utf-8")
    reading = source.partition("def _from_folder")[2]
    reading = reading.replace("/ PIECES", '"tokenizer.model"')
    named = {name for name in ("tokenizer.json", *HUB_FILES) if name.partition("/")[0] in reading}
    assert named == set(HUB_FILES)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("Got: ConnectError\nand much more"),
        httpx2.ConnectError("Got: ConnectError"),
        ValueError("Got: ConnectError"),
    ],
)
def test_why_the_hub_gave_nothing_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fails(name: str, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(FileNotFoundError, match=r"^Got: ConnectError$"):
        model_folder(NAME)
    assert generation_config(NAME) == {}


def test_an_unreachable_hub_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(FileNotFoundError, match=r"^The hub http://127\.0\.0\.1:9 does not answer, .*Set HF_ENDPOINT"):
        load_model_files(NAME)


def test_without_transformers_a_tokenizer_of_another_kind_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n", "utf-8")  # of tiktoken
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        FileNotFoundError, match=r"it has no tokenizer\.json \(pip install 'agent-server\[local\]' brings"
    ):
        load_model_files(tmp_path)
