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
from tokenizers import Tokenizer, models
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


PIECES = ("a", "b", "[UNUSED_TOKEN_146]", "<reserved_2>", "c")


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({piece: number for number, piece in enumerate(PIECES)}, []),
        models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=4),
    ],
    ids=lambda model: type(model).__name__,
)
def test_reserved_pieces_get_the_texts_of_the_configuration(model: models.Model, tmp_path: Path):
    """As in InternLM2, whose embeddings have no rows for further ids, which transformers gives these tokens."""
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    token = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    listed = {"2": {"content": "<|im_start|>", **token}, "3": {"content": "<|im_end|>", **token}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}), "utf-8")
    tokenizer = load_model_files(tmp_path).tokenizer
    assert tokenizer.encode("<|im_start|>ab<|im_end|>").ids == [2, 0, 1, 3]
    assert tokenizer.get_vocab_size() == len(PIECES)


def test_a_word_of_the_vocabulary_is_not_renamed(tmp_path: Path):
    pieces = {piece: number for number, piece in enumerate(("un", "used", "unused"))}
    Tokenizer(models.BPE(pieces, [("un", "used")])).save(str(tmp_path / "tokenizer.json"))
    listed = {"2": {"content": "<|im_start|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}), "utf-8")
    with pytest.raises(ValueError, match=r"gives the token '<\|im_start\|>' the id 2"):
        load_model_files(tmp_path)


OLDER: dict[str, dict[str, Any]] = {
    "the names of another file": {"special_tokens_map.json": {"eos_token": "<|extra|>"}},
    "tokens with their ids": {"added_tokens.json": {"<|extra|>": 0}},
    "both": {
        "special_tokens_map.json": {"eos_token": {"content": "<|extra|>", "lstrip": False}},
        "added_tokens.json": {"<|extra|>": 0, "<|more|>": 1},
    },
    "a token that tokenizer.json has": {"added_tokens.json": {"<|im_end|>": 2, "<|extra|>": 0}},
}


@pytest.mark.parametrize("name", OLDER)
def test_older_files_are_read_as_transformers_does(name: str, tmp_path: Path):
    """Before tokenizer_config.json had `added_tokens_decoder`, two other files named the special and the added tokens."""
    folder = changed(tmp_path)
    number = load_model_files(BUNDLED).tokenizer.get_vocab_size()
    for file, content in OLDER[name].items():
        if file == "added_tokens.json":
            content = {text: place if text == "<|im_end|>" else number + place for text, place in content.items()}
        (folder / file).write_text(json.dumps(content), "utf-8")
    files, theirs = load_model_files(folder), AutoTokenizer.from_pretrained(folder)
    for text in ("a <|extra|> b<|im_end|>", "<|more|><|extra|>x", "a<|extra|>\n"):
        assert files.tokenizer.encode(text).ids == theirs(text).input_ids
    assert files.special_tokens["eos_token"] == theirs.eos_token
    assert theirs.eos_token_id in files.stop_token_ids


TEMPLATE_FILES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a file replaces all of the configuration's": ({"chat_template.jinja": "NEW"}, {"default": "NEW"}),
    "files by name": (
        {"chat_template.jinja": "NEW", "additional_chat_templates/rag.jinja": "RAG"},
        {"default": "NEW", "rag": "RAG"},
    ),
    "the processor's": ({"processor_config.json": json.dumps({"chat_template": "OWN"})}, {"default": "OWN"}),
    "a processor without one": ({"processor_config.json": "{}"}, {"default": "OLD", "tool_use": "OLD TOOLS"}),
    "the older processor's": ({"chat_template.json": json.dumps({"chat_template": "OWN"})}, {"default": "OWN"}),
}


@pytest.mark.parametrize("name", TEMPLATE_FILES)
def test_templates_come_from_one_place(name: str, tmp_path: Path):
    """A template for tools that the configuration still has must not be used beside a newer file's."""
    entries = [{"name": "default", "template": "OLD"}, {"name": "tool_use", "template": "OLD TOOLS"}]
    folder = changed(tmp_path, chat_template=entries)
    (folder / "chat_template.jinja").unlink()
    files, expected = TEMPLATE_FILES[name]
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(content, "utf-8")
    assert load_model_files(folder).templates == expected
    if not any("processor" in file or file == "chat_template.json" for file in files):
        theirs = AutoTokenizer.from_pretrained(folder).chat_template
        assert (theirs if isinstance(theirs, dict) else {"default": theirs}) == expected
