"""Folders as huggingface_hub and peft leave them: served by the model's name, or a sentence that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.loading.weights import check_source
from agent_server.http.engine_choice import named_model
from agent_server.http.served_models import named_source
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.server import settings


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """The bundled model as huggingface_hub keeps it: files that are links to blobs, of the commit that main names."""
    root = tmp_path / "models--some--Model-1.5"
    for number, commit in enumerate(("0" * 40, "f" * 40)):
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (root / "blobs").mkdir(exist_ok=True)
        for file in BUNDLED.iterdir():
            blob = root / "blobs" / f"{number}{file.name}"
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / blob.name)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40, "utf-8")
    return root


def test_the_root_of_a_cache_is_the_snapshot_under_the_models_name(cached: Path):
    snapshot = str(cached / "snapshots" / ("0" * 40))
    for source in (str(cached), snapshot):
        assert named_model(settings(model=source, engine=())) == (snapshot, "Model-1.5")
        assert named_source(source) == ("Model-1.5", snapshot)
    assert named_source(f"other={cached}") == ("other", snapshot)
    check_source(snapshot)
    assert load_model_files(snapshot).templates


def test_a_cache_without_branches_is_its_only_snapshot(cached: Path):
    shutil.rmtree(cached / "refs")
    shutil.rmtree(cached / "snapshots" / ("0" * 40))
    assert named_source(str(cached)) == ("Model-1.5", str(cached / "snapshots" / ("f" * 40)))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_to_nothing_is_named(cached: Path, name: str):
    (cached / "blobs" / f"0{name}").unlink()
    with pytest.raises(EngineError, match=rf"{name} is a link to .*blobs/0{name}, which is not there; download it"):
        check_source(str(cached / "snapshots" / ("0" * 40)))


def test_an_adapter_alone_names_what_it_is_served_with(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}), "utf-8")
    with pytest.raises(EngineError, match=r"holds an adapter without its model: serve Qwen/Qwen3-0.6B with --adapter"):
        check_source(str(tmp_path))
