"""LoRA adapters by rows: what each row generates is what peft's merged model generates, whatever the others have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from agent_server.engine_protocol.protocol import CacheHold, Delta, EngineError, Finished, GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine
from agent_server.generation.loading.loader import load
from agent_server.generation.lora.lora import scale_of
from agent_server.generation.scheduling.messages import EngineConfig
from events.options import SamplingParams
from tests.generation.harness import Driver
from tests.generation.tiny_models import make_model, save

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
PROMPTS = {"": (5, 6, 7, 8, 9), "red": (11, 12, 13, 14, 15, 16, 17), "blue": (5, 6, 7, 8, 9)}
KINDS: dict[str, dict[str, Any]] = {
    "red": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
    "blue": {"r": 6, "target_modules": "all-linear", "use_rslora": True, "alpha_pattern": {"mlp.up_proj": 3}},
    "green": {"r": 2, "target_modules": ["down_proj"], "lora_alpha": 16},
}


def make_adapter(folder: Path, kind: str, seed: int = 1, **changes: Any) -> Path:
    """An adapter for the tiny llama whose weights are large enough to change what is said."""
    torch.manual_seed(seed)
    adapted = get_peft_model(make_model("llama", **changes), LoraConfig(**KINDS[kind]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    adapted.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama"), tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_adapter(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[int]]:
    return {name: merged(folders.get(name), PROMPTS[name]) for name in PROMPTS}


def merged(folder: Path | None, prompt: tuple[int, ...], tokens: int = 12) -> list[int]:
    """What the model generates with the adapter in its weights, by peft and transformers."""
    model: Any = make_model("llama")
    if folder is not None:
        model = PeftModel.from_pretrained(model, folder).merge_and_unload()
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
    return list(out[0, len(prompt) :].tolist())


def given(folders: dict[str, Path], *names: str) -> tuple[str, ...]:
    return tuple(f"{name}={folders[name]}" for name in names)


@pytest.fixture(params=["slab", "paged"])
async def engine(base: Path, folders: dict[str, Path], request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedEngine]:
    config = EngineConfig(
        model=str(base), dtype="float32", max_batch=4, threads=1, memory=request.param,
        lora=given(folders, "red", "blue"), name="tiny",
    )  # fmt: skip
    made = EmbeddedEngine(config, process=False)
    await made.start()
    yield made
    await made.close()


def asking(name: str, adapter: str, prompt: tuple[int, ...], tokens: int = 12) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, adapter=adapter)


async def generated(engine: EmbeddedEngine, request: GenerationRequest) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt's were found computed."""
    ids: list[int] = []
    cached = 0
    async for item in engine.generate(request):
        if isinstance(item, Delta):
            ids += [token.id for token in item.tokens]
        elif isinstance(item, Finished):
            cached = item.usage.cached_tokens
    return ids, cached


async def test_rows_of_one_batch_have_adapters_of_their_own(engine: EmbeddedEngine, expected: dict[str, list[int]]):
    assert len({tuple(ids) for ids in expected.values()}) == 3
    asked = [asking(f"{name}-{n}", name, PROMPTS[name]) for n in range(2) for name in PROMPTS]
    answers = await asyncio.gather(*(generated(engine, request) for request in asked))
    assert [ids for ids, _ in answers] == [expected[request.adapter] for request in asked]


async def test_rounded_weights_take_adapters_played_back_or_not(base: Path, folders: dict[str, Path]):
    """Rows with an adapter run module by module, whose layers of one input share a product where the rest is played."""
    found = []
    for played in (False, True):
        lora = given(folders, "red", "blue")
        config = EngineConfig(
            model=str(base), name="tiny", device="cpu", max_batch=4, threads=1, lora=lora, quantize="int8",
            flatten=played,
        )  # fmt: skip
        made = EmbeddedEngine(config, process=False)
        await made.start()
        assert made.info.details["flat"] is played
        asked = [asking(f"{played}-{name}", name, PROMPTS[name]) for name in PROMPTS]
        found.append([ids for ids, _ in await asyncio.gather(*(generated(made, request) for request in asked))])
        await made.close()
    assert found[0] == found[1] and len({tuple(ids) for ids in found[0]}) == 3


async def test_what_was_computed_with_one_adapter_is_not_taken_for_another(engine: EmbeddedEngine):
    prompt = tuple(range(20, 60))
    for adapter in ("", "red", "blue"):
        first, _ = await generated(engine, asking("first", adapter, prompt))
        again, cached = await generated(engine, asking("again", adapter, prompt))
        assert (again, cached > 0) == (first, True)
    _, cached = await generated(engine, asking("other", "red", prompt[:-1]))
    assert cached > 0


async def test_adapters_come_and_go_while_it_generates(
    engine: EmbeddedEngine, folders: dict[str, Path], expected: dict[str, list[int]]
):
    stream = engine.generate(asking("long", "red", PROMPTS["red"]))
    ids = [token.id for token in (await anext(stream)).tokens]  # type: ignore[union-attr]
    await engine.remove_adapter("red")
    await engine.load_adapter("green", str(folders["green"]))
    with pytest.raises(EngineError, match="no adapter red"):
        await generated(engine, asking("late", "red", PROMPTS["red"]))
    async for item in stream:
        if isinstance(item, Delta):
            ids += [token.id for token in item.tokens]
    assert ids == expected["red"]
    assert (await generated(engine, asking("new", "green", PROMPTS[""])))[0] == merged(folders["green"], PROMPTS[""])
    await engine.load_adapter("red", str(folders["blue"]))  # the name's old cache is not this one's
    found, _ = await generated(engine, asking("again", "red", PROMPTS["blue"]))
    assert found == expected["blue"]
    assert {each.partition("=")[0] for each in engine.config.lora} == {"red", "blue", "green"}


def test_a_prefill_lets_go_of_its_adapter(base: Path, folders: dict[str, Path]):
    config = EngineConfig(model=str(base), threads=1, lora=given(folders, "red"))
    driver = Driver.around(*load(config, lambda status: None, lambda files, size: None))
    driver.submit([5, 6, 7, 8], adapter="red", cache_hold=CacheHold(conversation="c", prefill_only=True, ttl=60.0))
    driver.finish()
    driver.assert_clean()


def lose(part: str, folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    found = load_file(file)
    del found[f"base_model.model.model.layers.0.self_attn.q_proj.{part}.weight"]
    save_file(found, file)


def rename(folder: Path, old: str, new: str) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name.replace(old, new): tensor for name, tensor in load_file(file).items()}, file)


def configure(folder: Path, **changes: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


WRONG: dict[str, tuple[Any, str]] = {
    "a wider model's": (
        lambda folder: make_adapter(folder, "red", hidden_size=64),
        r"does not fit .*: its tensor base_model\.model\.model\.layers\.0\.self_attn\.q_proj\.lora_A\.weight is 4 × 64 "
        r"and should be 4 × 48\.",
    ),
    "without one half": (
        lambda folder: lose("lora_B", folder),
        r"it lacks base_model\.model\.model\.layers\.0\.self_attn\.q_proj\.lora_B\.weight\.",
    ),
    "of another family": (
        lambda folder: rename(folder, "q_proj", "c_attn"),
        r"it has .*c_attn\.lora_A\.weight, for which the model has no place among the linear layers of its decoder\.",
    ),
    "DoRA": (lambda folder: configure(folder, use_dora=True), r"has use_dora, .*serve it alone with --adapter"),
    "another kind": (lambda folder: configure(folder, peft_type="IA3"), r"is of the kind IA3; only LORA is served\."),
    "with a magnitude": (
        lambda folder: rename(folder, "lora_B.weight", "lora_magnitude_vector"),
        r"has .*lora_magnitude_vector, which cannot be kept apart",
    ),
    "no files": (lambda folder: (folder / "adapter_config.json").unlink(), r"adapter_config\.json cannot be read"),
}


async def test_an_adapter_that_does_not_fit_is_one_sentence_and_changes_nothing(
    base: Path, folders: dict[str, Path], expected: dict[str, list[int]], tmp_path: Path
):
    config = EngineConfig(model=str(base), name="tiny", dtype="float32", threads=1, lora=given(folders, "blue"))
    engine = EmbeddedEngine(config, process=False)
    await engine.start()
    try:
        for number, (change, sentence) in enumerate(WRONG.values()):
            folder = make_adapter(tmp_path / str(number), "red")
            change(folder)
            with pytest.raises(EngineError, match=sentence):
                await engine.load_adapter("blue", str(folder))
        assert (await generated(engine, asking("a", "blue", PROMPTS["blue"])))[0] == expected["blue"]
        with pytest.raises(EngineError, match="no adapter red"):
            await generated(engine, asking("b", "red", PROMPTS["red"]))
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 16}, 4.0),
        ({"lora_alpha": 16, "use_rslora": True}, 8.0),
        ({"lora_alpha": 16, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"lora_alpha": 16, "alpha_pattern": {"k_proj": 2}}, 4.0),
    ],
)
def test_the_scale_is_that_of_peft(config: dict[str, Any], scale: float):
    assert scale_of(config, "model.layers.0.self_attn.q_proj", 4) == scale


async def test_models_on_caches_of_their_own_say_what_to_do_instead(tmp_path: Path, folders: dict[str, Path]):
    folder = save(make_model("bloom"), tmp_path)
    engine = EmbeddedEngine(EngineConfig(model=str(folder), threads=1, lora=given(folders, "red")), process=False)
    with pytest.raises(EngineError):
        await engine.start()
    await engine.close()
