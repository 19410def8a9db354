"""Which engine `--engine auto` takes, with a stand-in for vLLM: installed or not, with CUDA or without."""

import importlib.machinery
import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agent_server.engines.embedded import EmbeddedEngine
from agent_server.engines.vllm_inprocess import VLLMEngine
from agent_server.http.engine_choice import auto_engine, choose_engine, choose_models
from agent_server.http.server import BUNDLED
from agent_server.models.model import ChatModel
from tests.server import settings as make_settings


def settings(**changes):
    return make_settings(**{"engine": (), **changes})


@pytest.fixture
def vllm(monkeypatch):
    """A module that knows LlamaForCausalLM and finds CUDA as long as `cuda` is True."""
    module, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.cuda = True
    module.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: {"LlamaForCausalLM"})
    platforms.current_platform = SimpleNamespace(is_cuda=lambda: module.cuda)
    module.platforms = platforms
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    return module


@pytest.fixture
def model(tmp_path):
    return write(tmp_path)


def write(folder: Path, **changes: object) -> str:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("engine", [(), ("auto",)])
def test_vllm_is_taken_on_cuda_where_it_knows_the_model(engine, vllm, model, caplog):
    with caplog.at_level(logging.INFO, logger="agent_server"):
        chosen = choose_engine(settings(engine=engine, max_context=512), model, "tiny")
    assert isinstance(chosen, VLLMEngine)
    assert caplog.messages == [
        "tiny is computed by the engine vllm. vLLM is installed and knows LlamaForCausalLM, and the device is CUDA."
    ]


def test_where_it_is_not_installed_the_embedded_engine_is_taken(model, caplog):
    with caplog.at_level(logging.INFO, logger="agent_server"):
        assert isinstance(choose_engine(settings(), model, "tiny"), EmbeddedEngine)
    assert caplog.messages == ["tiny is computed by the engine embedded. vLLM is not installed here."]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chunk_tokens": 128}, "does not take --chunk-tokens: set step_tokens"),
        ({"quantize": "int8"}, "does not take --quantize"),
        ({"adapter": "folder"}, "does not take --adapter"),
        ({"lora": ("red=folder",)}, "The adapter cannot be loaded"),
        ({"device": "cuda:0,cuda:1"}, "does not take --device"),
        ({"device": "cpu"}, "The device is cpu"),
        ({"embedding_model": "folder"}, "Several models share this machine"),
    ],
)
def test_settings_that_vllm_does_not_take_keep_the_embedded_engine(changes, reason, vllm, model):
    engine, sentence = auto_engine(settings(**changes), model)
    assert engine == "embedded" and reason in sentence


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["OwnForCausalLM"]}, "vLLM does not know the architecture OwnForCausalLM."),
        ({"architectures": None}, "vLLM does not know the architecture of the model."),
        ({"vision_config": {}}, "It reads pictures or sounds, which vLLM in this process does not take."),
    ],
)
def test_models_that_vllm_does_not_serve_keep_the_embedded_engine(changes, reason, vllm, tmp_path):
    assert auto_engine(settings(), write(tmp_path, **changes)) == ("embedded", reason)


def test_files_and_devices_that_are_not_vllms_keep_the_embedded_engine(vllm, model, tmp_path):
    assert auto_engine(settings(), "model.gguf") == ("embedded", "It is a GGUF file, which the embedded engine reads.")
    assert auto_engine(settings(), str(BUNDLED))[0] == "embedded"
    (tmp_path / "empty").mkdir()
    engine, sentence = auto_engine(settings(), str(tmp_path / "empty"))
    assert engine == "embedded" and sentence.endswith("has no config.json that can be read.")
    assert auto_engine(settings(), model)[0] == "vllm"
    vllm.cuda = False
    assert auto_engine(settings(), model) == ("embedded", "vLLM finds no CUDA device here.")


def test_a_broken_installation_keeps_the_embedded_engine(vllm, model, monkeypatch):
    monkeypatch.delattr(vllm, "ModelRegistry")
    engine, sentence = auto_engine(settings(), model)
    assert engine == "embedded" and sentence.startswith("vLLM cannot be used: ImportError: cannot import name")


def test_an_engine_that_is_named_wins(vllm, model):
    assert isinstance(choose_engine(settings(engine=("embedded",)), model, "tiny"), EmbeddedEngine)
    vllm.cuda = False
    assert isinstance(choose_engine(settings(engine=("vllm",)), model, "tiny"), VLLMEngine)


def test_several_models_share_a_device_and_keep_the_embedded_engine(vllm, model, caplog):
    alone = choose_models(settings(model=model), None).main
    assert isinstance(alone, ChatModel) and isinstance(alone.engine, VLLMEngine)
    with caplog.at_level(logging.INFO, logger="agent_server"):
        choose_models(settings(model=f"a={model}", models=(f"b={model}",)), None)
    assert len(caplog.messages) == 2 and all(
        "computed by the engine embedded. Several" in each for each in caplog.messages
    )


def test_a_draft_model_reaches_vllm(vllm, model):
    """It was refused as if another server computed the model."""
    served = choose_models(settings(model=model, engine=("vllm",), draft="small"), None)
    assert isinstance(served.main, ChatModel)
    assert served.main.engine._arguments["speculative_config"] == {"model": "small", "num_speculative_tokens": 5}
