"""Tokenizers as training and other tools leave them in a folder: serving is that of transformers, which sets anew what
was saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.server import serving

LONG = "word " * 150


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The bundled model, with its tokenizer saved by transformers as a training script leaves it: after a call that cut
    and padded."""
    shutil.copytree(BUNDLED, tmp_path, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    tokenizer(["a text", LONG], truncation=True, max_length=40, padding="max_length")
    tokenizer.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert saved["truncation"]["max_length"] == 40 and saved["padding"], "what this test is about"
    return tmp_path


async def test_a_prompt_is_neither_cut_nor_padded(trained: Path):
    async with serving(model=str(trained)) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        for text in (LONG, "hi"):
            expected = len(AutoTokenizer.from_pretrained(BUNDLED)(text).input_ids)
            counted = (await client.post("/tokenize", json={"prompt": text})).json()["count"]
            asked = {"prompt": text, "max_tokens": 1}
            completed = (await client.post("/v1/completions", json=asked)).json()["usage"]["prompt_tokens"]
            assert (counted, completed) == (expected, expected)
        message = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}
        chat = (await client.post("/v1/chat/completions", json=message)).json()
        assert chat["usage"]["prompt_tokens"] > 150


def changed(folder: Path, **settings: Any) -> Path:
    path = folder / "tokenizer_config.json"
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **settings}), "utf-8")
    return folder


def cases() -> Iterator[dict[str, Any]]:
    number = load_model_files(BUNDLED).tokenizer.get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    yield {"additional_special_tokens": ["<|tool|>"]}
    yield {"extra_special_tokens": {"image_token": "<|tool|>"}}
    yield {"pad_token": "<|tool|>"}
    yield {"added_tokens_decoder": {str(number): {"content": "<|tool|>", **flags}}}
    yield {"added_tokens_decoder": {"2": {"content": "<|im_end|>", **flags, "rstrip": True}}}
    yield {"bos_token": "<|im_start|>", "add_bos_token": True}
    yield {"bos_token": "<|im_start|>", "add_bos_token": True, "add_eos_token": True}
    yield {"add_bos_token": False, "add_eos_token": False}


@pytest.mark.parametrize("settings", list(cases()), ids=str)
def test_what_the_settings_name_is_applied_as_transformers_does(settings: dict[str, Any], tmp_path: Path):
    folder = changed(tmp_path, **settings)
    own, reference = load_model_files(folder).tokenizer, AutoTokenizer.from_pretrained(folder)
    for text in ("a <|tool|> b", "<|tool|>", "<|im_end|>  c", ""):
        assert own.encode(text).ids == reference(text).input_ids
        assert own.encode(text, add_special_tokens=False).ids == reference(text, add_special_tokens=False).input_ids


def test_a_token_whose_id_is_taken_is_refused(tmp_path: Path):
    token = {"content": "<|tool|>", "lstrip": False, "rstrip": False, "single_word": False, "special": True}
    folder = changed(tmp_path, added_tokens_decoder={"3": token})
    with pytest.raises(ValueError, match=r"gives the token '<\|tool\|>' the id 3, but tokenizer.json makes it \d+\."):
        load_model_files(folder)
