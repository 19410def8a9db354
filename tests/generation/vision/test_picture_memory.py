"""The vision tower has its part in the memory of a GPU."""

import logging

import pytest
import torch

from agent_server.generation import profile
from agent_server.generation.profile import picture_step
from agent_server.generation.vision.encoder import KEPT_BYTES
from agent_server.generation.vision.reader import load_reader
from tests.generation.vision.seeing_models import make_words, save_seeing


@pytest.fixture
def counters(monkeypatch):
    """What torch counts on a device: 100 bytes, and 40 more for each row that the tower computes."""
    taken = {"bytes": 100}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: taken["bytes"])
    monkeypatch.setattr(profile, "PICTURE_SIDE", 200)
    return taken


@pytest.fixture
def seeing(tmp_path):
    model = save_seeing("qwen2.5-vl", tmp_path)
    return model, load_reader(str(tmp_path), make_words("qwen2.5-vl").backend_tokenizer)


def test_the_largest_picture_is_computed_and_what_is_kept_comes_on_top(counters, seeing, monkeypatch):
    model, reader = seeing
    encode = model.get_image_features

    def counted(**tensors):
        counters["bytes"] += 40 * len(tensors["pixel_values"])
        return encode(**tensors)

    monkeypatch.setattr(model, "get_image_features", counted)
    patches = 4096 // 4**2  # the processor's most pixels, by patches of 4
    assert picture_step(model, reader) == 40 * patches + KEPT_BYTES


def test_a_device_that_is_too_small_for_it_is_said(counters, seeing, monkeypatch, caplog):
    model, reader = seeing

    def exhausted(**tensors):
        counters["bytes"] = 5000
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(model, "get_image_features", exhausted)
    with caplog.at_level(logging.WARNING):
        assert picture_step(model, reader) == 4900 + KEPT_BYTES
    assert "The largest pictures that the model reads do not fit on cpu." in caplog.messages
