"""A tiny random Whisper transcribes for the openai SDK and for CopilotKit's microphone, with `generate`'s tokens."""

from __future__ import annotations

import asyncio
import base64
import struct
from pathlib import Path

import httpx
import openai
import pytest
import torch
import transformers

from agent_server.engine_protocol.protocol import SpeechOptions
from agent_server.engines.transcription import choose_transcriber
from agent_server.generation.multimodal.transcribing import SpeechModel
from tests.generation.tiny_models import make_tokenizer
from tests.media.recordings import recorded, wav
from tests.server import scripted, serving, settings

TOKENS = 12
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>")
SPECIAL += ("<|startofprev|>", "<|notimestamps|>")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads of a tiny model wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """As such models come, and as small as they may be."""
    path = tmp_path_factory.mktemp("tiny-whisper")
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    times = tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(1501)])
    tokenizer.save(str(path / "tokenizer.json"))
    config = transformers.WhisperConfig(
        vocab_size=times + 1501, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8, max_target_positions=64,
        pad_token_id=ids["<|endoftext|>"], bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"], suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
        model.model.decoder.embed_positions.weight.mul_(9.0)
        model.model.decoder.embed_tokens.weight[ids["<|endoftext|>"] :] = 0  # it writes text, and times where it must
    own = model.generation_config
    own.is_multilingual, own.max_length = True, 4 + TOKENS
    own.lang_to_id = {"<|en|>": ids["<|en|>"], "<|de|>": ids["<|de|>"]}
    own.task_to_id = {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]}
    own.no_timestamps_token_id, own.prev_sot_token_id = ids["<|notimestamps|>"], ids["<|startofprev|>"]
    own.suppress_tokens = own.begin_suppress_tokens = None
    own._from_model_config = False  # else it is made of the model's configuration when it is loaded
    model.save_pretrained(path)
    transformers.WhisperFeatureExtractor(feature_size=8).save_pretrained(path)
    return path


def generated(folder: Path, data: bytes, **named) -> str:
    """By transformers alone."""
    wave = [value / 2**15 for (value,) in struct.iter_unpack("<h", data[44:])]
    features = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    inputs = features(wave, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    out = model.generate(inputs.input_features, attention_mask=inputs.attention_mask, task="transcribe", **named)
    tokenizer = make_tokenizer().from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(out[0].tolist(), skip_special_tokens=True).strip()


@pytest.fixture
async def running(folder: Path):
    async with serving(scripted("Hi."), transcriber=str(folder), dtype="float32", demo=False) as server:
        while server.server.transcriber._model is None:
            assert not server.server.transcriber._failure
            await asyncio.sleep(0.01)
        yield server


async def test_the_openai_sdk(running, folder: Path):
    name, data = folder.name, wav()
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0) as client:
        said = await client.audio.transcriptions.create(model=name, file=("a.wav", data), language="en", temperature=0)
        asked = client.audio.transcriptions.create(model=name, file=("a.wav", data), language="de", prompt="Ahem")
        other = await asked
        plain = await client.audio.transcriptions.create(
            model="default", file=("a.wav", data), language="en", response_format="text"
        )
        models = [model.id for model in (await client.models.list()).data]
        with pytest.raises(openai.BadRequestError, match="does not know the language 'xx'"):
            await client.audio.transcriptions.create(model=name, file=("a.wav", data), language="xx")
        with pytest.raises(openai.BadRequestError, match="is no sound in WAV"):
            await client.audio.transcriptions.create(model=name, file=("a.wav", b"text"))
        with pytest.raises(openai.BadRequestError, match="stream is not supported"):
            await client.audio.transcriptions.create(model=name, file=("a.wav", data), stream=True)
        with pytest.raises(openai.NotFoundError):
            await client.audio.transcriptions.create(model="another", file=("a.wav", data))
    assert said.text == generated(folder, data, language="en") and len(set(said.text)) > 2
    assert said.usage.seconds == 1.0
    assert plain.strip() == said.text != other.text
    assert name in models


async def test_copilotkits_microphone(running, folder: Path):
    async with httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.get("/copilotkit/info")).json()
        said = await client.post(
            "/copilotkit/transcribe", files={"audio": ("recording.webm", recorded(), "audio/webm")}
        )
        broken = await client.post("/copilotkit/transcribe", files={"audio": ("recording.webm", b"text", "audio/webm")})
        empty = await client.post("/copilotkit/transcribe", data={"a": "b"}, files={"b": b"c"})
        json = await client.post("/copilotkit/transcribe", json={})
        call = {"method": "transcribe", "body": {"audio": base64.b64encode(recorded()).decode(), "filename": "a.webm"}}
        single = await client.post("/copilotkit", json=call)
        nothing = await client.post("/copilotkit", json={"method": "transcribe", "body": {"audio": "!"}})
        without = await client.post("/copilotkit", json={"method": "transcribe"})
    assert single.json() == said.json() and single.status_code == 200
    assert (nothing.status_code, nothing.json()["error"]) == (400, "invalid_audio_format")
    assert (without.status_code, without.json()["message"]) == (400, "body.audio is required: a recording in base64.")
    assert info["audioFileTranscriptionEnabled"] is True
    assert said.status_code == 200 and list(said.json()) == ["text"]
    assert (broken.status_code, broken.json()["error"]) == (400, "invalid_audio_format")
    assert (empty.status_code, json.status_code) == (400, 415)


async def test_without_a_model_both_say_how_to_have_one():
    async with serving(scripted("Hi."), demo=False) as running, httpx.AsyncClient(base_url=running.url) as client:
        wire = await client.post("/v1/audio/transcriptions", files={"file": ("a.wav", wav())})
        page = await client.post("/copilotkit/transcribe", files={"audio": ("a.wav", wav())})
        info = (await client.get("/copilotkit/info")).json()
    assert wire.status_code == 400 and "--transcriber" in wire.text
    assert (page.status_code, page.json()["error"]) == (503, "service_not_configured")
    assert info["audioFileTranscriptionEnabled"] is False


def test_longer_than_the_window_is_read_to_its_end(folder: Path):
    """By the times that the model writes, of which the text shows none; where they stand still, window by window."""
    model = SpeechModel.load(str(folder), "cpu", "float32")
    first, options = wav(seconds=30)[44:], SpeechOptions(language="en")
    second = wav(seconds=1)[44:]
    text, tokens = model.transcribe(first + second, options)
    assert tokens > 0 and "<|" not in text
    apart = model.token_ids(first, options) + model.token_ids(second, options)
    assert model.token_ids(first + second, options) == apart, "this model's times stand still"


def test_a_prompt_is_cut_to_what_the_model_reads_of_one(folder: Path):
    model = SpeechModel.load(str(folder), "cpu", "float32")
    prompt = " ".join(f"word{number}" for number in range(200))
    _, tokens = model.transcribe(wav()[44:], SpeechOptions(language="en", prompt=prompt))
    assert 0 < tokens <= TOKENS + 4


def test_what_cannot_transcribe_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(ValueError, match="There is no folder nowhere"):
        choose_transcriber(settings(transcriber="nowhere"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="only Whisper's kind"):
        SpeechModel.load(str(tmp_path), "cpu", "float32")
