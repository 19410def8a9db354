"""Towers have their part in the memory of a GPU."""

import logging

import pytest
import torch

from agent_server.generation.loading import memory_plan
from agent_server.generation.loading.memory_plan import media_step
from agent_server.generation.multimodal.encoder import CACHE_BYTES
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Readers
from agent_server.generation.multimodal.picture_reader import load_picture_reader
from agent_server.generation.multimodal.sound_reader import load_sound_reader
from tests.generation.multimodal import hearing_models
from tests.generation.multimodal.seeing_models import make_words, save_seeing


@pytest.fixture
def counters(monkeypatch):
    """What torch counts on a device: 100 bytes, and 40 more for each row that the tower computes."""
    taken = {"bytes": 100}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: taken["bytes"])
    monkeypatch.setattr(memory_plan, "PICTURE_SIDE", 200)
    return taken


@pytest.fixture
def seeing(tmp_path):
    model = save_seeing("qwen2.5-vl", tmp_path)
    words = make_words("qwen2.5-vl").backend_tokenizer
    return model, Readers(load_picture_reader(str(tmp_path), words, model.config.image_token_id))


def test_the_largest_picture_is_computed_and_what_is_kept_comes_on_top(counters, seeing, monkeypatch):
    model, readers = seeing
    encode = model.get_image_features

    def counted(**tensors):
        counters["bytes"] += 40 * len(tensors["pixel_values"])
        return encode(**tensors)

    monkeypatch.setattr(model, "get_image_features", counted)
    patches = 4096 // 4**2  # the processor's most pixels, by patches of 4
    assert media_step(InnerTextModel(model), readers) == 40 * patches + CACHE_BYTES


def test_a_device_that_is_too_small_for_it_is_said(counters, seeing, monkeypatch, caplog):
    model, readers = seeing

    def exhausted(**tensors):
        counters["bytes"] = 5000
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(model, "get_image_features", exhausted)
    with caplog.at_level(logging.WARNING):
        assert media_step(InnerTextModel(model), readers) == 4900 + CACHE_BYTES
    assert "The largest pictures that the model reads do not fit on cpu." in caplog.messages


def test_the_longest_sound_is_computed(counters, tmp_path, monkeypatch):
    model = hearing_models.save_hearing("qwen2-audio", tmp_path)
    words = hearing_models.make_words("qwen2-audio").backend_tokenizer
    readers = Readers(sounds=load_sound_reader(str(tmp_path), words))
    tower = model.model.audio_tower

    def counted(module, args):
        counters["bytes"] += 40 * args[0].shape[-1]

    tower.register_forward_pre_hook(counted)
    frames = 100 * hearing_models.WINDOW
    assert media_step(InnerTextModel(model), readers) == 40 * frames + CACHE_BYTES
