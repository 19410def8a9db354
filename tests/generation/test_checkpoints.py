"""Checkpoints that cannot be served, loaded as `agent-server serve` loads them: each case and its sentence."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from agent_server.engine_protocol.protocol import EngineStatus
from agent_server.generation.checkpoints import checkpoint
from agent_server.generation.loading.loader import defaults_of
from agent_server.http.engine_choice import chat_model
from agent_server.http.server import StartupError
from agent_server.model_files import UnusableFile, load_model_files
from tests.generation.harness import Driver, expected
from tests.generation.tiny_models import make_model, make_tokenizer, save
from tests.server import serving, settings

WEIGHTS = "model.safetensors"
TENSOR = "model.layers.1.mlp.down_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 1234\n"
PULL = "is a pointer of Git LFS instead of the file: run `git lfs pull` in {}."


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama"), tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "tiny"))


async def loaded(folder: Path, **changes: object) -> EngineStatus:
    """What the server says of a model once it has tried to load it."""
    model = chat_model(settings(model=str(folder), engine=(), **changes))
    await model.load()
    try:
        return model.status
    finally:
        await model.close()


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return changed


def spoil(value: float) -> Callable[[Path], None]:
    return tensors(lambda found: found[TENSOR].__setitem__((0, 0), value))


def pickled(content: bytes) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin").write_bytes(content)

    return changed


def without_a_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    make_model("llama").save_pretrained(folder, max_shard_size="50KB")
    (folder / "model-00002-of-00005.safetensors").unlink()


def instead(config: str, model: str) -> Callable[[Path], None]:
    """Another model in the place of the good one."""

    def changed(folder: Path) -> None:
        shutil.rmtree(folder)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        if config == "T5Config":
            sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "d_kv": 8}
        getattr(transformers, model)(getattr(transformers, config)(vocab_size=320, **sizes)).save_pretrained(folder)
        make_tokenizer().save(str(folder / "tokenizer.json"))

    return changed


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights are a Git LFS pointer": (write(WEIGHTS, POINTER), "{}/model.safetensors " + PULL),
    "the tokenizer is a Git LFS pointer": (write("tokenizer.json", POINTER), "{}/tokenizer.json " + PULL),
    "pickled weights are a Git LFS pointer": (pickled(POINTER.encode()), "{}/pytorch_model.bin " + PULL),
    "random bytes": (
        write(WEIGHTS, bytes([77]) * 5000),
        "{}/model.safetensors is not a safetensors file; download it again.",
    ),
    "random bytes behind a plausible length": (
        write(WEIGHTS, (100).to_bytes(8, "little") + bytes([77]) * 5000),
        "{}/model.safetensors is not a safetensors file: its header cannot be read; download it again.",
    ),
    "a header that is cut off": (
        cut(WEIGHTS, 200),
        "{}/model.safetensors is cut off within its header; download it again.",
    ),
    "tensors that are cut off": (
        cut(WEIGHTS, 250_000),
        "{}/model.safetensors is cut off: its header says 255008 bytes, it has 250000; download it again.",
    ),
    "an empty file": (write(WEIGHTS, b""), "{}/model.safetensors is empty; download it again."),
    "pickled random bytes": (
        pickled(b"\x12\x34" * 100),
        "{}/pytorch_model.bin is not a file of torch's; download it again.",
    ),
    "a value that is not a number": (
        spoil(float("nan")),
        f"{{}}/model.safetensors has values in the tensor {TENSOR} that are not finite numbers; "
        "download the model again.",
    ),
    "an infinite value": (
        spoil(float("inf")),
        f"{{}}/model.safetensors has values in the tensor {TENSOR} that are not finite numbers; "
        "download the model again.",
    ),
    "a missing tensor": (
        tensors(lambda found: found.pop(TENSOR)),
        f"{{}}/model.safetensors lacks the tensor {TENSOR} that LlamaForCausalLM needs; without them the answers "
        "would be random; download the model again.",
    ),
    "a tensor of another shape": (
        tensors(lambda found: found.update({TENSOR: torch.zeros(48, 60)})),
        f"{{}}/model.safetensors does not fit its config.json: the tensor {TENSOR} is 48 × 60 where config.json asks "
        "for 48 × 64; download the model again.",
    ),
    "a missing shard": (
        without_a_shard,
        "{}/model-00002-of-00005.safetensors is missing: of 5 files that model.safetensors.index.json names, 1 are "
        "not there; download the model again.",
    ),
    "no weights": (
        remove(WEIGHTS),
        "{} has no weights: model.safetensors (or model.safetensors.index.json and its shards) is missing; "
        "download the model again.",
    ),
    "an encoder with a decoder": (
        instead("T5Config", "T5ForConditionalGeneration"),
        "{} (T5ForConditionalGeneration) cannot be served: it has an encoder and a decoder, and only models of a "
        "decoder alone are served; choose a model that generates text.",
    ),
    "no tokenizer": (
        remove("tokenizer.json"),
        "no tokenizer was found for '{}': there is no tokenizer.json and nothing that transformers can make one of; "
        "copy the tokenizer's files beside the weights",
    ),
    "a broken tokenizer": (
        write("tokenizer.json", "{]"),
        "{}/tokenizer.json is not a tokenizer (key must be a string at line 1 column 2); download it again.",
    ),
    "a broken config.json": (
        write("config.json", "{]"),
        "{}/config.json is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "download it again.",
    ),
    "a config.json that is a list": (
        write("config.json", "[]"),
        "{}/config.json holds no JSON object; download it again.",
    ),
    "a config.json without a model_type": (
        write("config.json", "{}"),
        "{}/config.json has no model_type, so that its architecture is not known; download it again.",
    ),
    "a config.json with text for a number": (
        write("config.json", '{"model_type": "llama", "hidden_size": "big"}'),
        "{}/config.json cannot be used: Validation error for field 'hidden_size': TypeError: Field 'hidden_size' "
        "expected int, got str (value: 'big')",
    ),
    "an unknown architecture": (
        write("config.json", '{"model_type": "nonesuch"}'),
        f"{{}} is of an architecture that transformers {transformers.__version__} does not know.",
    ),
    "a generation_config.json with text for a number": (
        write("generation_config.json", '{"temperature": "hot"}'),
        "generation_config.json has temperature='hot', which is not a number; download it again.",
    ),
    "a chat template that is no text": (
        write("chat_template.jinja", b"\xff\xfe\x00"),
        "{}/chat_template.jinja is not a text in UTF-8; download it again.",
    ),
    "a broken chat template": (
        write("chat_template.jinja", "{% if"),
        "the chat template is not valid: unexpected 'end of template'",
    ),
    "a broken generation_config.json": (
        write("generation_config.json", "nonsense"),
        "{}/generation_config.json is not JSON (Expecting value: line 1 column 1 (char 0)); download it again.",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
async def test_what_cannot_be_served_is_said_in_one_sentence(case: str, folder: Path):
    change, sentence = CASES[case]
    change(folder)
    status = await loaded(folder)
    assert status.state == "failed"
    assert status.message.removeprefix("Cannot load tiny: ") == sentence.replace("{}", str(folder))


async def test_an_encoder_is_refused_with_the_option_that_it_wants(folder: Path):
    instead("BertConfig", "BertModel")(folder)
    with pytest.raises(StartupError, match=f"cannot chat .BertModel.*--embedding-model {folder}"):
        await loaded(folder)


def quantised(kind: str) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        path = folder / "config.json"
        settings = {"quant_method": kind, "bits": 4, "group_size": 32}
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": settings}))

    return changed


@pytest.mark.parametrize(
    ("kind", "packages"),
    [
        ("gptq", "optimum gptqmodel"),
        ("awq", "gptqmodel"),
        ("compressed-tensors", "compressed-tensors"),
        ("bitsandbytes", "bitsandbytes"),
        ("torchao", "torchao"),
        ("aqlm", "'aqlm[cpu,gpu]'"),
    ],
)
async def test_a_quantised_checkpoint_says_what_reads_it(
    kind: str, packages: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    quantised(kind)(folder)
    monkeypatch.setattr(checkpoint, "_there", lambda module: False)
    status = await loaded(folder)
    assert status.state == "failed"
    assert status.message == f"{folder} is quantised as {kind}, which is read by: pip install {packages}"


FP8_DYNAMIC = {
    "config_groups": {
        "group_0": {
            "input_activations": {
                "dynamic": True,
                "num_bits": 8,
                "strategy": "token",
                "symmetric": True,
                "type": "float",
            },
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {"dynamic": False, "num_bits": 8, "strategy": "channel", "symmetric": True, "type": "float"},
        }
    },
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
"""As checkpoints named FP8-dynamic have it, which llm-compressor writes."""


async def test_an_fp8_checkpoint_of_compressed_tensors_names_its_package_and_vllm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": FP8_DYNAMIC}))
    monkeypatch.setattr(checkpoint, "_there", lambda module: False)
    status = await loaded(folder)
    assert status.message == (
        f"{folder} is quantised as compressed-tensors, which is read by: pip install compressed-tensors. vLLM multiplies "
        "FP8 as it is on a GPU: pip install 'agent-server[vllm]', and serve it with --engine vllm."
    )


def test_packages_are_looked_for_where_they_are():
    assert checkpoint._there("torch") and not checkpoint._there("nothing.within_nothing")


async def test_what_is_quantised_already_is_not_quantised_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    quantised("awq")(folder)
    monkeypatch.setattr(checkpoint, "_there", lambda module: True)
    status = await loaded(folder, quantize="int8")
    assert status.message == f"{folder} is quantised already; serve it without --quantize."


# code that comes with a checkpoint

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def own_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The good model as an architecture that transformers does not have."""
    (folder / "own.py").write_text(CODE)
    path = folder / "config.json"
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    changes = {"model_type": "own-llama", "architectures": ["OwnForCausalLM"], "auto_map": classes}
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


async def test_code_of_a_checkpoint_is_not_run_and_nobody_is_asked(own_code: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    status = await loaded(own_code)
    assert status.state == "failed"
    assert status.message == (
        f"{own_code} comes with code of its own, which is run with --trust-remote-code alone: read it first."
    )


@pytest.mark.filterwarnings("ignore")
async def test_code_of_a_checkpoint_is_run_on_request(own_code: Path):
    status = await loaded(own_code, trust_remote_code=True)
    assert (status.state, status.message) == ("ready", "")


TOKENIZER = """
import tokenizers
from transformers import PreTrainedTokenizerFast

class OwnTokenizer(PreTrainedTokenizerFast):
    def __init__(self, **settings):
        words = {"<unk>": 0, "hi": 1}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        super().__init__(tokenizer_object=made, unk_token="<unk>")
"""


@pytest.fixture
def own_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_tokenizer.py").write_text(TOKENIZER)
    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own_tokenizer.OwnTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


def test_code_of_a_tokenizer_is_not_run_and_nobody_is_asked(own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    with pytest.raises(UnusableFile, match=r"^The tokenizer of .*own comes with code of its own, which is run with"):
        load_model_files(own_tokenizer)


@pytest.mark.filterwarnings("ignore")
def test_code_of_a_tokenizer_is_run_on_request(own_tokenizer: Path):
    assert load_model_files(own_tokenizer, trusted=True).tokenizer.encode("hi").ids == [1]


# what a model's generation_config asks for


def asking(**wishes: object) -> transformers.LlamaForCausalLM:
    model = make_model("llama")
    for name, value in wishes.items():
        setattr(model.generation_config, name, value)
    return model


def test_answers_are_as_long_as_the_model_says_unless_the_request_does():
    driver = Driver(asking(max_new_tokens=5))
    numbers = [driver.submit([5, 6, 7]), driver.submit([5, 6, 7], max_tokens=9)]
    driver.finish()
    assert [len(driver.ids(number)) for number in numbers] == [5, 9]


def test_tokens_that_the_model_suppresses_do_not_come():
    plain = expected(make_model("llama"), [5, 6, 7], 8)
    wishes = {"suppress_tokens": [plain[0], plain[3]]}
    wanted = expected(asking(**wishes), [5, 6, 7], 8)
    driver = Driver(asking(**wishes))
    number = driver.submit([5, 6, 7], max_tokens=8)
    biased = driver.submit([5, 6, 7], max_tokens=1, logit_bias={plain[0]: 0.5})
    driver.finish()
    assert driver.ids(number) == wanted
    assert not {plain[0], plain[3]} & set(driver.ids(number))
    assert driver.ids(biased) == [plain[0]]


def test_what_is_not_applied_is_said(caplog: pytest.LogCaptureFixture):
    defaults_of(asking(no_repeat_ngram_size=3, min_length=4))
    assert caplog.messages == [
        "generation_config.json asks for min_length=4, no_repeat_ngram_size=3, which is not applied: answers differ "
        "from those of transformers."
    ]
    caplog.clear()
    defaults_of(asking(top_k=7))
    assert not caplog.messages


async def test_a_model_that_loads_warns_of_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert (await loaded(folder)).state == "ready"
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_tensors_that_the_model_does_not_use_are_no_fault(folder: Path):
    """Checkpoints come with heads for training and for drafting."""
    tensors(lambda found: found.update({"model.layers.2.mlp.down_proj.weight": torch.zeros(48, 64)}))(folder)
    assert (await loaded(folder)).state == "ready"


async def test_a_context_that_the_model_does_not_have_is_refused(folder: Path):
    status = await loaded(folder, max_context=5000)
    assert status.state == "failed"
    assert status.message == (
        "--max-context 5000 is more than the 1024 tokens that the model is made for (max_position_embeddings in its "
        "config.json); give at most that."
    )


async def test_a_smaller_context_is_the_one_that_clients_see():
    import httpx

    async with serving(max_context=300) as running, httpx.AsyncClient(base_url=running.url) as client:
        cards = (await client.get("/v1/models")).json()["data"]
        assert {card["context_length"] for card in cards} == {card["max_model_len"] for card in cards} == {300}


# adapters


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter")


def make_adapter(folder: Path, **changes: object) -> Path:
    """A LoRA adapter for the good model, or for one that is changed."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(make_model("llama", **changes), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    adapted.save_pretrained(folder)
    return folder


LORA_WEIGHTS = "adapter_model.safetensors"
LORA_TENSOR = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def forget_a_tensor(folder: Path) -> None:
    found = load_file(folder / LORA_WEIGHTS)
    del found[LORA_TENSOR]
    save_file(found, folder / LORA_WEIGHTS)


def other_modules(folder: Path) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_modules": ["c_attn"]}))


ADAPTERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "made for a wider model": (
        lambda folder: make_adapter(folder, hidden_size=64),
        "The adapter {} does not fit {model}: its tensor "
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight is 4 × 64 and should be 4 × 48.",
    ),
    "made for a deeper model": (
        lambda folder: make_adapter(folder, num_hidden_layers=3),
        "The adapter {} does not fit {model}: it has base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight, "
        "for which the model has no place.",
    ),
    "a missing tensor": (
        forget_a_tensor,
        f"The adapter {{}} does not fit {{model}}: it lacks {LORA_TENSOR}.",
    ),
    "modules of another family": (
        other_modules,
        "The adapter {} does not fit {model}: Target modules {'c_attn'} not found in the base model.",
    ),
    "a Git LFS pointer": (
        write(LORA_WEIGHTS, POINTER),
        "The adapter cannot be loaded: {}/adapter_model.safetensors " + PULL,
    ),
    "no weights": (
        remove(LORA_WEIGHTS),
        "The adapter cannot be loaded: {} has no weights: adapter_model.safetensors is missing; "
        "download the model again.",
    ),
    "no configuration": (
        remove("adapter_config.json"),
        f"The adapter cannot be loaded: {{}}/adapter_config.json cannot be read: {os.strerror(2)}.",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ADAPTERS)
async def test_an_adapter_that_does_not_fit_is_said_in_one_sentence(case: str, good: Path, adapter: Path):
    change, sentence = ADAPTERS[case]
    change(adapter)
    status = await loaded(good, adapter=str(adapter))
    assert status.state == "failed"
    assert status.message.startswith(sentence.replace("{}", str(adapter)).replace("{model}", str(good)))
    assert "\n" not in status.message
