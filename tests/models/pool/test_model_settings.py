"""The settings that each of several models has of its own: which one a draft guesses for, how its output is read."""

from pathlib import Path

import pytest

from agent_server.http.engine_choice import choose_models
from agent_server.http.served_models import wanted_models, with_caches
from agent_server.http.server import StartupError
from tests.server import settings

BYTES = 1000


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    for name in ("large", "other", "small"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(BYTES))
    return {name: str(tmp_path / name) for name in ("large", "other", "small")}


def test_it_guesses_for_the_first_model_and_for_those_of_a_file_that_name_one(folders: dict[str, str], tmp_path: Path):
    rows = (
        f'[told]\nmodel = "{folders["other"]}"\ndraft = "{folders["small"]}"\n[plain]\nmodel = "{folders["large"]}"\n'
    )
    (tmp_path / "models.toml").write_text(rows)
    found = wanted_models(
        settings(
            model=folders["large"],
            models=(folders["other"],),
            models_file=tmp_path / "models.toml",
            draft="first",
            engine=(),
        )
    )
    drafts = {name: each.compute.draft for name, each in found.items()}
    assert drafts == {"large": "first", "other": "", "told": folders["small"], "plain": ""}


def test_its_weights_count(folders: dict[str, str]):
    wanted = wanted_models(
        settings(model=folders["large"], models=(folders["other"],), draft=folders["small"], engine=())
    )
    shares = {each.compute.kv_cache_bytes for each in with_caches(wanted, 10 * BYTES).values()}
    assert shares == {(10 - 3) * BYTES // 2}


def test_each_model_of_a_file_may_have_its_output_read_in_its_own_way(folders: dict[str, str], tmp_path: Path):
    rows = (
        f'[quoting]\nmodel = "{folders["other"]}"\nunmarked_calls = "strict"\nconstrain_tools = false\n'
        f'[plain]\nmodel = "{folders["large"]}"\n'
    )
    (tmp_path / "models.toml").write_text(rows)
    found = wanted_models(settings(models_file=tmp_path / "models.toml", engine=()))
    ways = {name: (each.output.unmarked_calls, each.output.constrain_tools) for name, each in found.items()}
    assert ways == {"quoting": ("strict", False), "plain": ("lenient", True)}
    (tmp_path / "models.toml").write_text(rows.replace('"strict"', '"sometimes"'))
    with pytest.raises(StartupError, match="The model quoting: unmarked_calls: Input should be 'strict' or 'lenient'"):
        wanted_models(settings(models_file=tmp_path / "models.toml", engine=()))


def test_it_guesses_for_no_model_that_is_computed_elsewhere(folders: dict[str, str]):
    with pytest.raises(StartupError, match="--draft needs a local model, but large runs on"):
        choose_models(settings(model=folders["large"], draft=folders["small"], engine=("http://127.0.0.1:9",)), None)
