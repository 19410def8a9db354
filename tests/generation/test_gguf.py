"""Models in one GGUF file: weights, tokenizer, template and special tokens out of it, and what is wrong with others."""

import json

import gguf
import httpx
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind

from agent_server.cli.inspect import inspect
from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.checkpoints.gguf_model import checked, configuration
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.http.engine_choice import StartupError, chat_model
from agent_server.model_files import load_model_files, source_name
from agent_server.model_files.gguf_files import gguf_templates, read_gguf
from agent_server.model_files.gguf_header import BLOCKS
from events.template.analyser import analyse
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_gguf import ARCHITECTURES, TEMPLATE, WIDE, write_gguf
from tests.generation.tiny_models import make_model
from tests.server import serving, settings

NEW = 12
KINDS = {"F16": {}, "BF16": {}, "Q8_0": {}, "Q4_0": {}, "Q5_1": {}, "Q4_K": WIDE, "Q6_K": WIDE}


def served(path, **settings):
    config = EngineConfig(model=str(path), device="cpu", dtype="float32", threads=1, flatten=False, **settings)
    return Driver.around(*load(config, lambda status: None, lambda files, size: None))


def assert_identical(path, model, **settings):
    driver = served(path, **settings)
    asked = prompts(3, seed=4, longest=40)
    numbers = [driver.submit(prompt, max_tokens=NEW) for prompt in asked]
    driver.finish()
    assert [driver.ids(number) for number in numbers] == [expected(model, prompt, NEW) for prompt in asked]
    return driver


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_generates_what_its_weights_do(family, tmp_path):
    path = tmp_path / "tiny.gguf"
    assert_identical(path, write_gguf(path, family))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("olmo2", {"attention_bias": True}),
        ("phi3", {"sliding_window": 8}),
        ("gemma3", {"final_logit_softcapping": 3.0}),
        ("gemma2", {"num_hidden_layers": 46, "head_dim": 32, "query_pre_attn_scalar": 16}),  # 27B
        ("gemma3", {"num_hidden_layers": 62, "head_dim": 32, "query_pre_attn_scalar": 16}),
    ],
)
def test_what_a_file_has_beyond_its_family_is_computed(family, changes, tmp_path):
    path = tmp_path / "tiny.gguf"
    assert_identical(path, write_gguf(path, family, **changes))


SEEING = {"QWEN2VL": "qwen2", "QWEN3VL": "qwen3", "QWEN3VLMOE": "qwen3-moe"}


@pytest.mark.parametrize("architecture", SEEING)
def test_the_text_part_of_a_model_for_pictures_is_served(architecture, tmp_path):
    path = tmp_path / "tiny.gguf"
    assert_identical(path, write_gguf(path, SEEING[architecture], architecture=gguf.MODEL_ARCH[architecture]))


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_tensors_are_unpacked(kind, tmp_path):
    path = tmp_path / "tiny.gguf"
    assert_identical(path, write_gguf(path, "qwen3", Kind[kind], **KINDS[kind]))


def test_formats_are_those_of_the_package():
    for name, (number, weights, size) in BLOCKS.items():
        assert (Kind[name], gguf.GGML_QUANT_SIZES[Kind[name]]) == (number, (weights, size))


def test_the_served_dtype_is_the_files(tmp_path):
    for kind, found in ((None, torch.float32), (Kind.F16, torch.float16), (Kind.Q4_0, torch.bfloat16)):
        path = tmp_path / f"{found}.gguf"
        write_gguf(path, "qwen3", kind)
        assert configuration(read_gguf(path)).dtype == found
    write_gguf(path := tmp_path / "router.gguf", "qwen3-moe", Kind.Q8_0, hidden_size=64)
    assert configuration(read_gguf(path)).dtype == torch.bfloat16  # although the router is in float32
    matrices = [name for name, tensor in write_gguf(path, "qwen3").state_dict().items() if tensor.ndim > 1]
    write_gguf(path := tmp_path / "vectors.gguf", "qwen3", without=matrices)  # the first of several parts
    assert configuration(read_gguf(path)).dtype == torch.bfloat16


def test_a_quantised_file_can_be_computed_in_eight_bits(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0)
    assert served(path, quantize="int8").info.details["quantized"] == "int8"


ROPE = "qwen3.rope.scaling."
POSITIONS = {
    "yarn": (
        {f"{ROPE}type": "yarn", f"{ROPE}factor": 4.0, f"{ROPE}original_context_length": 256},
        {},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    ),
    "yarn with a factor of its own": (
        {
            f"{ROPE}type": "yarn",
            f"{ROPE}factor": 4.0,
            f"{ROPE}original_context_length": 256,
            f"{ROPE}yarn_attn_factor": 2.0,
        },
        {},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 2.0},
    ),
    "linear": ({f"{ROPE}type": "linear", f"{ROPE}factor": 2.0}, {}, {"rope_type": "linear", "factor": 2.0}),
    "longrope": (
        {f"{ROPE}attn_factor": 1.25, f"{ROPE}original_context_length": 256},
        {"rope_factors_short.weight": [1.5] * 8, "rope_factors_long.weight": [2.5] * 8},
        {
            "rope_type": "longrope",
            "short_factor": [1.5] * 8,
            "long_factor": [2.5] * 8,
            "attention_factor": 1.25,
            "original_max_position_embeddings": 256,
        },
    ),
    "by frequency": ({}, {"rope_freqs.weight": [3.0] * 8}, {"rope_type": "linear", "factor": 3.0}),
}


@pytest.mark.parametrize("case", POSITIONS)
def test_positions_are_scaled_as_the_file_says(case, tmp_path):
    metadata, tensors, meant = POSITIONS[case]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", metadata=metadata.items(), tensors=tensors.items())
    rope = {"rope_theta": 10000.0, **meant}
    assert_identical(path, make_model("qwen3", hidden_size=64, rope_parameters=rope))


def test_authors_sampling_is_the_default(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata={"general.sampling.temp": 0.5, "general.sampling.top_k": 7}.items())
    defaults = served(path).core.defaults
    assert (defaults.temperature, defaults.top_k, sorted(defaults.eos)) == (0.5, 7, [257])
    assert (defaults.top_p, defaults.min_p) == (0.95, 0.05), "llama.cpp's, for what the file does not say"


def test_a_file_without_sampling_has_llama_cpps_defaults(good):
    defaults = served(good).core.defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p) == (0.8, 40, 0.95, 0.05)
    assert defaults.repetition_penalty is None


# the tokenizer and the template


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "tiny-Q8_0.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0)
    return path


def test_tokenizer_template_and_ends_come_from_the_file(good):
    (good.parent / "tokenizer_config.json").write_text('{"chat_template": "of another model", "eos_token": "x"}')
    files = load_model_files(good)
    text = "<|im_start|>hi, Grün é<|im_end|>"
    ids = files.tokenizer.encode(text, add_special_tokens=False).ids
    assert (ids[:2], ids[-1]) == ([256, 300], 257)
    assert files.tokenizer.get_vocab_size() == 320, "what transformers adds by itself has no embedding"
    assert files.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert files.templates == gguf_templates(good) == {"default": TEMPLATE}
    assert files.special_tokens == {"eos_token": "<|im_end|>"}
    assert (files.stop_token_ids, files.context_length) == ((257,), 1024)
    assert source_name(str(good)) == "tiny-Q8_0"


def test_the_format_analyser_reads_the_files_template(good):
    assert analyse(gguf_templates(good)["default"]) == analyse(TEMPLATE)


def test_inspect_reads_a_file(good, capsys):
    inspect(str(good), as_json=True)
    assert json.loads(capsys.readouterr().out)["name"] == "default"


def test_loading_is_told_as_progress_and_writes_nothing(good, capfd):
    told = []
    config = EngineConfig(model=str(good), device="cpu", dtype="float32", threads=1, flatten=False)
    load(config, told.append, lambda files, size: None)
    assert capfd.readouterr().err == ""
    shares = [status.progress for status in told if status.message == "weights"]
    assert shares == sorted(shares) and shares[-1] > 0.8


async def test_it_is_served_by_its_name(good):
    async with serving(model=str(good)) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "tiny-Q8_0"
        asked = {"model": "tiny-Q8_0", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        reply = (await client.post("/v1/chat/completions", json=asked)).json()
        assert reply["usage"]["completion_tokens"] in (1, 2, 3)


# what cannot be served


def changed(**metadata):
    return lambda path: write_gguf(path, metadata=[(key.replace("__", "."), value) for key, value in metadata.items()])


def cut(size):
    def write(path):
        write_gguf(path)
        path.write_bytes(path.read_bytes()[:size])

    return write


def bare(path):
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tensor("x.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


CASES = {
    "empty": (lambda path: path.write_bytes(b""), "{} is empty; download it again."),
    "a Git LFS pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n"),
        "{} is a pointer of Git LFS instead of the file: run `git lfs pull` in {folder}.",
    ),
    "random bytes": (lambda path: path.write_bytes(bytes([77]) * 999), "{} is not a GGUF file; download it again."),
    "random bytes behind the right beginning": (
        lambda path: path.write_bytes(b"GGUF\3\0\0\0" + bytes([7]) * 999),
        "{} is cut off within its header; download it again.",
    ),
    "a header that is cut off": (cut(2000), "{} is cut off within its header; download it again."),
    "tensors that are cut off": (
        cut(100_000),
        "{} is cut off: its header says 369216 bytes, it has 100000; download it again.",
    ),
    "an old version": (
        lambda path: path.write_bytes(b"GGUF\1\0\0\0" + bytes(99)),
        "{} is of version 1 of the format; 2 and 3 are read.",
    ),
    "a part of several": (
        changed(split__count=3),
        "{} is one of 3 parts of a model: join them with `llama-gguf-split --merge FIRST-PART WHOLE.gguf` and serve "
        "the whole.",
    ),
    "a picture encoder": (
        changed(general__type="mmproj"),
        "{} holds the picture encoder of a model, not the model; give the file with its text part.",
    ),
    "an adapter": (
        changed(general__type="adapter"),
        "{} holds a LoRA adapter, not a model; adapters are served from peft's folders, with --lora or --adapter.",
    ),
    "an unknown scaling of positions": (
        changed(qwen3__rope__scaling__type="spiral"),
        "{} scales positions in a way that is not known here (spiral).",
    ),
    "a missing tensor": (
        lambda path: write_gguf(path, without={"model.layers.1.mlp.down_proj.weight"}),
        "{} lacks the tensor model.layers.1.mlp.down_proj.weight that Qwen3ForCausalLM needs; without them the "
        "answers would be random; download the model again.",
    ),
    "a value that is not a number": (
        lambda path: write_gguf(path, spoilt="model.layers.1.mlp.down_proj.weight"),
        "{} has values in the tensor model.layers.1.mlp.down_proj.weight that are not finite numbers; "
        "download the model again.",
    ),
    "a tensor that its layers do not use": (
        lambda path: write_gguf(path, tensors=[("blk.1.attn_sinks.weight", np.zeros(4))]),
        "{} has the tensor blk.1.attn_sinks.weight that Qwen3ForCausalLM does not use, so its answers would be wrong: "
        "serve the folder that it was made of, or let llama.cpp's server compute it and give its URL with --engine.",
    ),
    "a tensor of another shape": (
        changed(qwen3__feed_forward_length=96),
        "{} does not fit its metadata: the tensor model.layers.0.mlp.down_proj.weight is 64 × 64 where they ask for "
        "64 × 96; download the model again.",
    ),
    "an architecture that is not read": (
        changed(general__architecture="rwkv7"),
        f"{{}} is of the architecture rwkv7, which transformers {transformers.__version__} does not read from GGUF "
        "files: serve the folder that it was made of, or let llama.cpp's server compute it and give its URL with "
        "--engine.",
    ),
    "no tokenizer": (
        bare,
        "{} has a tokenizer (of the kind none) that cannot be read: of the kinds of tokenizers, gpt2, llama and gemma4 "
        "are read; serve the folder that it was made of, or let llama.cpp's server compute it and give its URL with "
        "--engine.",
    ),
    "an unknown way to split text": (
        changed(tokenizer__ggml__pre="spiral"),
        "{} has a tokenizer (of the kind gpt2) that cannot be read: the way 'spiral' to split text into words "
        "(tokenizer.ggml.pre) is not known here; serve the folder that it was made of, or let llama.cpp's server "
        "compute it and give its URL with --engine.",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
async def test_what_cannot_be_served_is_said_in_one_sentence(case, tmp_path):
    write, sentence = CASES[case]
    path = tmp_path / "tiny.gguf"
    write(path)
    model = chat_model(settings(model=str(path), engine=()))
    await model.load()
    try:
        assert model.status.state == "failed"
        wanted = sentence.replace("{}", str(path)).replace("{folder}", str(tmp_path))
        assert model.status.message.removeprefix("Cannot load tiny: ") == wanted
    finally:
        await model.close()


def test_a_file_that_is_not_there_is_said_before_anything_starts(tmp_path):
    path = tmp_path / "gone.gguf"
    with pytest.raises(StartupError, match=f"^There is no file {path}.$"):
        chat_model(settings(model=str(path), engine=()))


async def test_a_missing_package_is_named(good, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        EngineError, match=r"tiny-Q8_0.gguf needs a package: pip install 'agent-server\[local,gguf\]'.$"
    ):
        checked(str(good))


# what a file says of its tokenizer


WRITTEN = {
    "nothing": ({}, []),
    "a beginning": ({"add_bos_token": True}, ["<|im_start|>"]),
    "no beginning": ({"add_bos_token": False}, []),
}


@pytest.mark.parametrize("case", WRITTEN)
async def test_bos_is_put_before_texts_as_the_file_says(case, tmp_path):
    flags, begin = WRITTEN[case]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata=[("tokenizer.ggml.bos_token_id", 256), *(named(flags))])
    async with serving(model=str(path)) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        count = len(begin) + 1
        assert (await client.post("/tokenize", json={"prompt": "hi"})).json()["count"] == count
        asked = {"prompt": "hi", "max_tokens": 1}
        assert (await client.post("/v1/completions", json=asked)).json()["usage"]["prompt_tokens"] == count
        asked = {"prompt": "<|im_start|>hi", "max_tokens": 1}
        doubled = (await client.post("/v1/completions", json=asked)).json()["usage"]["prompt_tokens"]
        assert doubled == 2, "one that is written is not doubled"


async def test_an_end_that_training_left_is_not_put_before_the_answer(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata=named({"add_eos_token": True}))
    assert load_model_files(path).tokenizer.encode("hi").tokens == ["hi", "<|im_end|>"]
    async with serving(model=str(path)) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        asked = {"prompt": "hi", "max_tokens": 1}
        assert (await client.post("/v1/completions", json=asked)).json()["usage"]["prompt_tokens"] == 1


def named(flags):
    return [(f"tokenizer.ggml.{name}", value) for name, value in flags.items()]


def test_text_is_normalised_as_the_model_learned_it(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen2")
    tokenizer = load_model_files(path).tokenizer
    for decomposed, composed in (("e\u0301", "é"), ("\u2126", "Ω"), ("\u1112\u1161\u11ab", "한")):
        assert tokenizer.encode(decomposed).ids == tokenizer.encode(composed).ids


def test_a_file_that_does_not_say_how_it_splits_text_is_warned_of(tmp_path, caplog):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata=[("tokenizer.ggml.pre", "default")])
    load_model_files(path)
    assert "does not say how its tokenizer splits text into words" in caplog.text
